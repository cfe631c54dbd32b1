"""Tables in the catalog: columns, versions, branches, tags, and the tables beside the current one."""
