"""Who offers which GPU, at run time: rules, holders, handing over; and the device plugin's side, wired."""
