//! Checks requests before anything is measured, so that what must fail fails early.

use membound_measure::{Error, Session, Spread, latency};
use membound_types::MachineProfile;

use super::plan;
use crate::args::{MeasureArgs, Part};
use crate::output::Usage;

/// Checks that the options of all parts make sense and fit this machine.
///
/// # Errors
/// [`Usage`] for values that make no sense on any machine, otherwise what this machine lacks.
pub(super) fn everything(
    session: &Session<'_>,
    args: &MeasureArgs,
    parts: &[Part],
    unmeasured: &MachineProfile,
) -> anyhow::Result<()> {
    // Without options nothing can be wrong: what the machine lacks is left out.
    if args.used().is_empty() {
        return Ok(());
    }
    machine(session, args)?;
    for part in parts {
        values(session, args, *part, unmeasured).map_err(|error| match error {
            Error::Invalid(why) => Usage(why).into(),
            other => anyhow::Error::from(other),
        })?;
    }
    Ok(())
}

/// Nodes and hardware threads that this machine does not have.
fn machine(session: &Session<'_>, args: &MeasureArgs) -> anyhow::Result<()> {
    let local = session.topology.node_of(session.cpu);
    for node in &args.node {
        session.topology.wanted(*node, local)?;
    }
    anyhow::ensure!(
        plan::spread(args) != Spread::Siblings || !session.siblings.is_empty(),
        "--spread siblings: no two CPUs that may be used are known to share a core (a virtual \
         machine may hide which do)"
    );
    Ok(())
}

/// Checks the values of one part.
fn values(
    session: &Session<'_>,
    args: &MeasureArgs,
    part: Part,
    unmeasured: &MachineProfile,
) -> Result<(), Error> {
    match part {
        Part::Latency => plan::latency(session, args, args.parts.is_empty())
            .iter()
            .try_for_each(|config| latency::check(session, config)),
        Part::Mlp => plan::mlp(session, args).check(),
        Part::Window => plan::windows(session, args)
            .iter()
            .try_for_each(|config| config.check(session)),
        Part::Bandwidth => plan::bandwidth(session, args, unmeasured).check(session),
        Part::Loaded => plan::loaded(session, args, unmeasured).check(),
        // The options of these parts are kinds of pages only.
        Part::Tlb | Part::Prefetch | Part::Numa | Part::C2c | Part::Calibration => Ok(()),
    }
}
