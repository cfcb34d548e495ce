"""Container Device Interface: what a container gets, and the files that say so."""
