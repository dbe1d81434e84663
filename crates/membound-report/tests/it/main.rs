//! What membound-report makes of whole documents.

mod fixture;
