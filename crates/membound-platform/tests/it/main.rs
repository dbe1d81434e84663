//! What only whole processes can show: that what is changed on a machine comes back however
//! the process ends, and what a filter's refusals look like.

#[cfg(test)]
mod denied;
#[cfg(test)]
mod prefetcher_restore;
#[cfg(test)]
mod prefetcher_settings;
