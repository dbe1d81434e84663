//! Progress bar on a terminal; nothing is shown elsewhere.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use membound_measure::Progress;

/// A bar on stderr that advances through weighted parts; hidden unless stderr is a terminal.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// Share of the bar before the present part, and the share of the part itself.
    span: Mutex<(f64, f64)>,
}

impl Bar {
    const STEPS: u64 = 1000;

    pub(crate) fn new() -> Self {
        let target = if std::io::stderr().is_terminal() {
            // Few redraws, because each evicts some of the cache.
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(Self::STEPS), target);
        let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {left:>8}  {wide_msg}");
        if let Ok(style) = style {
            bar.set_style(style.with_key("left", time_left));
        }
        Self {
            bar,
            span: Mutex::new((0.0, 1.0)),
        }
    }

    /// Begins a part at the share `from` of the bar; it takes the share `width`.
    pub(crate) fn part(&self, from: f64, width: f64) {
        if let Ok(mut span) = self.span.lock() {
            *span = (from, width);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Writes the remaining time at the pace so far; nothing while too little is done to estimate it.
fn time_left(state: &ProgressState, text: &mut dyn Write) {
    const MIN_STEPS: u64 = 10;
    if state.pos() >= MIN_STEPS {
        // A failed write only means that no time is shown.
        let _ = write!(text, "{:.0} s left", state.eta().as_secs_f64());
    }
}

impl Progress for Bar {
    fn at(&self, share: f64, doing: &str) {
        let (from, width) = self.span.lock().map_or((0.0, 1.0), |span| *span);
        let position = (from + width * share.clamp(0.0, 1.0)) * Self::STEPS as f64;
        self.bar.set_position(position as u64);
        self.bar.set_message(doing.to_owned());
    }
}
