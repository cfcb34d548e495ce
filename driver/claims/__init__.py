"""ResourceClaims on this node: decode, plan, record, prepare, unprepare, recover."""
