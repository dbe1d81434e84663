//! What switches prefetchers, as this part needs it.
//!
//! The command passes the machine's controls; tests pass a register that remembers.

use membound_types::{NotMeasured, PrefetchState};

use crate::Session;

/// Prefetchers that can be switched.
pub trait PrefetchControl {
    /// Their names, as documents show them.
    fn names(&self) -> Vec<String>;

    /// Every setting beside the machine's own.
    fn settings(&self) -> Vec<PrefetchState>;

    /// Brings about one of [`PrefetchControl::settings`] on the measuring CPUs until the result
    /// is restored or dropped.
    ///
    /// # Errors
    /// Why it could not be brought about, or did not stay. Everything is as it was then.
    fn set(&self, setting: &PrefetchState) -> Result<Box<dyn SwitchedOff>, NotMeasured>;
}

/// Prefetchers that are set. Dropping it puts them back too, on whatever way out.
pub trait SwitchedOff {
    /// Puts the prefetchers back and says how that went.
    ///
    /// # Errors
    /// Why they could not be put back.
    fn restore(self: Box<Self>) -> Result<(), NotMeasured>;
}

/// What came of measuring in several settings.
#[derive(Debug)]
pub struct InSettings<T> {
    /// Each setting that could be had, and what was measured in it.
    pub measured: Vec<(PrefetchState, T)>,
    /// What could not be had or put back, and why.
    pub skipped: Vec<String>,
}

/// Measures in each of `settings` in turn and puts the prefetchers back after each, whatever
/// `measure` did; it is told which setting it is, and its number. A cancelled session begins
/// no further one.
///
/// # Errors
/// The first error of `measure`. Everything is back then.
pub fn in_settings<T, E>(
    session: &Session<'_>,
    control: Result<&dyn PrefetchControl, &NotMeasured>,
    settings: &[PrefetchState],
    mut measure: impl FnMut(&PrefetchState, usize) -> Result<T, E>,
) -> Result<InSettings<T>, E> {
    let mut all = InSettings {
        measured: Vec::new(),
        skipped: Vec::new(),
    };
    for (number, setting) in settings.iter().enumerate() {
        if session.cancelled() {
            break;
        }
        let set = match (setting, control) {
            (PrefetchState::Default, _) => None,
            (_, Ok(control)) => Some(control.set(setting)),
            (_, Err(reason)) => Some(Err(reason.clone())),
        };
        let set = match set.transpose() {
            Ok(set) => set,
            Err(reason) => {
                let what = match setting {
                    PrefetchState::Off => "all off".to_owned(),
                    PrefetchState::Without(name) => format!("{name} off"),
                    other => other.to_string(),
                };
                all.skipped
                    .push(format!("{what}: {}", with_remedy(&reason)));
                continue;
            }
        };
        let measured = measure(setting, number);
        if let Some(Err(reason)) = set.map(SwitchedOff::restore) {
            let reason = with_remedy(&reason);
            all.skipped
                .push(format!("putting prefetchers back: {reason}"));
        }
        all.measured.push((setting.clone(), measured?));
    }
    Ok(all)
}

fn with_remedy(reason: &NotMeasured) -> String {
    match &reason.remedy {
        Some(remedy) => format!("{} ({remedy})", reason.reason),
        None => reason.reason.clone(),
    }
}
