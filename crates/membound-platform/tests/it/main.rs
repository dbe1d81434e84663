//! What is changed on a machine comes back, however the process ends.

#[cfg(test)]
mod prefetcher_restore;
