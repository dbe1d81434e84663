//! Starts programs with the agent in them, and serves the agent.
