//! Errors of gates.

use membound_types::GateSubject;

/// Reason why a gate has no verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// An expression that cannot be parsed.
    #[error("`{expression}`: {reason}")]
    Expression {
        /// The expression as given.
        expression: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An expression whose name no run has.
    #[error("`{expression}`: no {subject} `{name}` in any run{near}")]
    Unknown {
        /// The expression as given.
        expression: String,
        /// Kind of the subject.
        subject: GateSubject,
        /// Name of the subject.
        name: String,
        /// Similar names as `: there is A, B`; empty if there are none.
        near: String,
    },
    /// A run that did not record the data that the gate needs.
    #[error("`{expression}`: {file} has no {what}: {reason}")]
    NotRecorded {
        /// The expression as given.
        expression: String,
        /// File of the run.
        file: String,
        /// Missing data: `objects` or `latencies`.
        what: &'static str,
        /// Why it was not recorded.
        reason: String,
    },
}
