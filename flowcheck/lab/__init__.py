"""Jobs and traffic to try FlowCheck on; nothing but the command line imports this."""
