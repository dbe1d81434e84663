//! One self-contained HTML page for a machine profile.
//!
//! All charts are drawn here, as inline SVG, so that they also work without JavaScript, on paper and in a
//! mail attachment; the script only adds reading of values, and switching of curves and of the colour
//! scheme. The page loads nothing, and its own content security policy forbids it.

mod compare;
mod harvest_explore;
mod harvest_run;
mod head;
mod json;
mod machine;
mod model;
mod panels;
mod parts;
mod profile;
mod run_comparison;
mod shell;
mod svg;

pub use compare::comparison;
pub use harvest_explore::harvest_explore;
pub use harvest_run::harvest_run;
pub use machine::render;
pub use model::model;
pub use profile::profile;
pub use run_comparison::run_comparison;
