//! Makes findings from values and from reasons. The caller adds the group.

use membound_types::{Finding, NotMeasured, Outcome};
use serde_json::Value;

pub(super) fn known(key: &str, value: impl Into<String>, detail: Value) -> Finding {
    Finding {
        group: String::new(),
        key: key.to_owned(),
        value: Outcome::Known(value.into()),
        detail: (!detail.is_null()).then_some(detail),
    }
}

pub(super) fn outcome(key: &str, value: Outcome<String>) -> Finding {
    Finding {
        group: String::new(),
        key: key.to_owned(),
        value,
        detail: None,
    }
}

pub(super) fn missing(key: &str, not_measured: NotMeasured) -> Finding {
    outcome(key, Outcome::Missing { not_measured })
}
