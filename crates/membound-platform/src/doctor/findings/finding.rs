//! Makes findings from values and from reasons.

use membound_types::{Finding, NotMeasured, Outcome};
use serde_json::Value;

pub(super) fn known(group: &str, key: &str, value: impl Into<String>, detail: Value) -> Finding {
    Finding {
        group: group.to_owned(),
        key: key.to_owned(),
        value: Outcome::Known(value.into()),
        detail: (!detail.is_null()).then_some(detail),
    }
}

pub(super) fn outcome(group: &str, key: &str, value: Outcome<String>) -> Finding {
    Finding {
        group: group.to_owned(),
        key: key.to_owned(),
        value,
        detail: None,
    }
}

pub(super) fn missing(group: &str, key: &str, not_measured: NotMeasured) -> Finding {
    outcome(group, key, Outcome::Missing { not_measured })
}
