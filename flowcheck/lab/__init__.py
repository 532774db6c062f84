"""A virtual cluster, training jobs and synthetic traffic to try FlowCheck on. Only the command
line imports this room."""
