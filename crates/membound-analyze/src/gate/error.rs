//! What is wrong with gates.

use membound_types::GateSubject;

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// An expression that cannot be read.
    #[error("`{expression}`: {reason}")]
    Expression {
        /// As it was given.
        expression: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An expression that names what no run has.
    #[error("`{expression}`: no {subject} `{name}` in any run{near}")]
    Unknown {
        /// As it was given.
        expression: String,
        /// What it is about.
        subject: GateSubject,
        /// What it names.
        name: String,
        /// `: there is A, B`, or nothing.
        near: String,
    },
    /// A run in which what is guarded was not recorded.
    #[error("`{expression}`: {file} has no {what}: {reason}")]
    NotRecorded {
        /// As it was given.
        expression: String,
        /// The run.
        file: String,
        /// `objects` or `latencies`.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}
