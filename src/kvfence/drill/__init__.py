"""The drill: the incident and its relatives on the embedded engine, each with its mechanism off and on."""
