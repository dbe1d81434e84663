//! Known answers: curves of machines whose caches are built in, curves of a real one, and
//! a whole profile.

mod curves;
mod machines;
mod profile;
mod properties;
mod topology;
