//! `membound compare`: machine profiles side by side.
