//! The hierarchy model of document 002: topology, fit, identifiability, rates, prediction.
