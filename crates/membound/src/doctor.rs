//! `membound doctor`: examines the machine before it is measured.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use membound_measure::{Effort, Session, Silent};
use membound_platform::{Root, doctor};
use membound_types::Timer;

use crate::args::DoctorArgs;
use crate::output::{self, Target};
use crate::version;

/// Examines the machine and shows the findings.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let root = Root::system();
    let mut doctor = doctor::examine(&root, timer(&root)?);
    doctor.machine.membound_version = version::BUILD.to_owned();
    match &mut json {
        Some(target) => {
            target.write(&output::json(&doctor)?)?;
        }
        None => output::print(&membound_report::doctor::text(&doctor, output::style())),
    }
    Ok(ExitCode::SUCCESS)
}

/// The timer, and the core's clock measured by dependent additions.
fn timer(root: &Root) -> anyhow::Result<Timer> {
    let cancel = AtomicBool::new(false);
    let session = Session::new(root, None, Effort::Normal, &cancel, &Silent)?;
    Ok(session.clock.describe(session.core_hz))
}
