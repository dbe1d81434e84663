//! Interface to the switches of prefetchers.
//!
//! The command implements it with the machine's controls; tests use a fake that logs the calls.

use membound_types::{NotMeasured, PrefetchState};

use crate::Session;

/// Prefetchers that can be switched.
pub trait PrefetchControl {
    /// Names of the prefetchers, as documents show them.
    fn names(&self) -> Vec<String>;

    /// Every setting besides the machine's own.
    fn settings(&self) -> Vec<PrefetchState>;

    /// Applies one of [`PrefetchControl::settings`] on the measuring CPUs until the result is
    /// restored or dropped.
    ///
    /// # Errors
    /// Why the setting could not be applied, or did not stay. The previous state is restored then.
    fn set(&self, setting: &PrefetchState) -> Result<Box<dyn SwitchedOff>, NotMeasured>;
}

/// Prefetchers in a changed setting. Dropping the value restores them too.
pub trait SwitchedOff {
    /// Restores the prefetchers.
    ///
    /// # Errors
    /// Why they could not be restored.
    fn restore(self: Box<Self>) -> Result<(), NotMeasured>;
}

/// Result of measuring in several settings.
#[derive(Debug)]
pub struct InSettings<T> {
    /// Each setting that could be applied, and what was measured in it.
    pub measured: Vec<(PrefetchState, T)>,
    /// What could not be applied or restored, and why.
    pub skipped: Vec<String>,
}

/// Measures in each of `settings` in turn and restores the prefetchers after each, whatever
/// `measure` did. `measure` receives the setting and its number. After a cancellation, no further
/// setting begins.
///
/// # Errors
/// The first error of `measure`. The prefetchers are restored then.
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
