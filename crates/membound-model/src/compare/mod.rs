//! Machine profiles side by side.
