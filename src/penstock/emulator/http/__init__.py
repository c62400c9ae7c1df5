"""HTTP/1.1 on the port of gRPC: Google's REST surface, and what probes ask for."""
