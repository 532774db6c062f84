"""Downloads a step from a FlowCheck server or an object store, in parallel and resumable."""
