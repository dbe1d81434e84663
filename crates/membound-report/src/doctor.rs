//! Report of `membound doctor` for a terminal.
//!
//! Facts come first, group by group, then membound's capabilities on this machine. An unknown fact is shown
//! with the reason, and a remedy follows an arrow.

use std::fmt::Write;

use membound_types::{Capability, CapabilityState, Doctor, Finding, Outcome};
use textwrap::Options;

use crate::text::Style;

/// Fewest columns for a text beside its name.
const MIN_TEXT: usize = 20;
/// Narrowest page, in columns, on which names and texts fit beside each other.
const NARROWEST: usize = 60;
/// Width of a finding's name, and of a capability's state and name together, in columns.
const NAME: usize = 21;
const STATE: usize = 9;
/// Columns before the arrow of a remedy.
const REMEDY: usize = 18;

/// Formats the whole document.
#[must_use]
pub fn text(doctor: &Doctor, style: Style) -> String {
    let mut page = Page {
        text: String::new(),
        color: style.color,
        width: style.width.max(NARROWEST),
    };
    page.title(doctor);
    let mut group = None;
    for finding in &doctor.findings {
        if group != Some(&finding.group) {
            group = Some(&finding.group);
            page.heading(&finding.group, "");
        }
        page.finding(finding);
    }
    page.heading("what membound does here", &summary(&doctor.capabilities));
    for capability in &doctor.capabilities {
        page.capability(capability);
    }
    page.text
}

/// Counts by state: `12 full, 3 reduced, 2 absent`. States without capabilities are left out.
fn summary(capabilities: &[Capability]) -> String {
    let parts: Vec<String> = CapabilityState::ALL
        .into_iter()
        .filter_map(|state| {
            let number = capabilities
                .iter()
                .filter(|capability| capability.state == state)
                .count();
            (number > 0).then(|| format!("{number} {state}"))
        })
        .collect();
    parts.join(", ")
}

/// Emphasis of a piece of text.
#[derive(Clone, Copy)]
enum Ink {
    Plain,
    Bold,
    Dim,
    Good,
    Fair,
    Bad,
}

impl Ink {
    const fn escape(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Fair => "\x1b[33m",
            Self::Bad => "\x1b[31m",
        }
    }
}

struct Page {
    text: String,
    color: bool,
    width: usize,
}

impl Page {
    fn title(&mut self, doctor: &Doctor) {
        let machine = &doctor.machine;
        let mut title = format!(
            "membound {} on {}, Linux {}",
            machine.membound_version, machine.host, machine.conditions.kernel
        );
        if let Some(hypervisor) = &machine.conditions.hypervisor {
            let _ = write!(title, ", a guest of {hypervisor}");
        }
        for line in wrap(&title, self.width) {
            self.line("", &line, Ink::Bold);
        }
        self.line("", &machine.date, Ink::Dim);
    }

    fn heading(&mut self, title: &str, remark: &str) {
        self.text.push('\n');
        let title = sanitized(title);
        if remark.is_empty() {
            self.line("", &title, Ink::Bold);
        } else {
            let title = self.painted(&title, Ink::Bold);
            let remark = self.painted(remark, Ink::Dim);
            let _ = writeln!(self.text, "{title}  {remark}");
        }
    }

    fn finding(&mut self, finding: &Finding) {
        let label = format!("  {:NAME$}", sanitized(&finding.key).replace('_', " "));
        match &finding.value {
            Outcome::Known(value) => self.entry(&label, value, Ink::Plain),
            Outcome::Missing { not_measured } => {
                self.entry(
                    &label,
                    &format!("not known: {}", not_measured.reason),
                    Ink::Dim,
                );
                if let Some(remedy) = &not_measured.remedy {
                    self.remedy(remedy);
                }
            }
        }
    }

    fn capability(&mut self, capability: &Capability) {
        let ink = match capability.state {
            CapabilityState::Full => Ink::Good,
            CapabilityState::Reduced => Ink::Fair,
            CapabilityState::Absent => Ink::Bad,
        };
        let state = format!("  {:STATE$}", capability.state);
        let what = format!("{:NAME$}", sanitized(&capability.what));
        let indent = state.len() + what.chars().count();
        let label = format!("{}{what}", self.painted(&state, ink));
        self.set(&label, indent, &capability.how, Ink::Plain);
        if let Some(better) = &capability.better {
            self.remedy(better);
        }
    }

    /// Adds a remedy, indented less than the text that it belongs to, so that the longest path still fits.
    fn remedy(&mut self, remedy: &str) {
        let label = format!("{}→ ", " ".repeat(REMEDY));
        self.entry(&label, remedy, Ink::Fair);
    }

    /// Adds a label with a text beside it; further lines of the text are indented.
    fn entry(&mut self, label: &str, value: &str, ink: Ink) {
        self.set(label, label.chars().count(), value, ink);
    }

    /// Like [`Page::entry`], for a label that contains escape sequences and is `indent` columns wide.
    fn set(&mut self, label: &str, indent: usize, value: &str, ink: Ink) {
        let mut before = label.to_owned();
        // A label that leaves no gap gets a line of its own.
        if !label.ends_with(' ') {
            self.line("", label, Ink::Plain);
            before = " ".repeat(NAME + 2);
        }
        let indent = indent.min(self.width - MIN_TEXT);
        for line in wrap(value, self.width - indent) {
            self.line(&before, &line, ink);
            before = " ".repeat(indent);
        }
    }

    fn line(&mut self, before: &str, text: &str, ink: Ink) {
        let text = self.painted(text, ink);
        let line = format!("{before}{text}");
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn painted(&self, text: &str, ink: Ink) -> String {
        if !self.color || ink.escape().is_empty() {
            return text.to_owned();
        }
        format!("{}{text}\x1b[0m", ink.escape())
    }
}

/// Breaks text into lines of at most `width` columns; at least one line, possibly empty. Commands and paths
/// are broken only if they are longer than a line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let options = Options::new(width)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(&sanitized(text), options)
        .into_iter()
        .map(std::borrow::Cow::into_owned)
        .collect()
}

/// `text` without control characters, because names of machines and devices come from outside.
fn sanitized(text: &str) -> String {
    text.chars()
        .map(|letter| {
            if letter.is_control() {
                '\u{fffd}'
            } else {
                letter
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::{Conditions, Cpu, Kind, MachineInfo, NotMeasured, Timer};

    fn finding(group: &str, key: &str, value: Outcome<String>) -> Finding {
        Finding {
            group: group.to_owned(),
            key: key.to_owned(),
            value,
            detail: None,
        }
    }

    fn document() -> Doctor {
        Doctor {
            schema_version: 1,
            kind: Kind::Doctor,
            machine: MachineInfo {
                host: "box".to_owned(),
                date: "2026-01-02T03:04:05Z".to_owned(),
                membound_version: "0.1.0".to_owned(),
                cpu: Cpu::default(),
                caches: Vec::new(),
                memory_bytes: 1 << 33,
                timer: Timer::default(),
                conditions: Conditions {
                    hypervisor: Some("KVM".to_owned()),
                    kernel: "6.12.0".to_owned(),
                    ..Conditions::default()
                },
            },
            findings: vec![
                finding("processor", "cpu", Outcome::Known("AMD EPYC".to_owned())),
                finding(
                    "processor",
                    "smt",
                    Outcome::Known("no two online CPUs share a core".to_owned()),
                ),
                finding(
                    "permissions",
                    "msr",
                    Outcome::Missing {
                        not_measured: NotMeasured {
                            reason: "/dev/cpu/0/msr is not there: the msr module is not loaded, \
                                     or the kernel has none"
                                .to_owned(),
                            remedy: Some("as root: modprobe msr".to_owned()),
                        },
                    },
                ),
            ],
            capabilities: vec![
                Capability {
                    what: "latency".to_owned(),
                    state: CapabilityState::Full,
                    how: "emitted chains of dependent loads on 2 CPUs".to_owned(),
                    better: None,
                },
                Capability {
                    what: "2m pages".to_owned(),
                    state: CapabilityState::Absent,
                    how: "the hugetlb pool is empty".to_owned(),
                    better: Some(
                        "as root: echo 576 > \
                         /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
                            .to_owned(),
                    ),
                },
            ],
        }
    }

    #[test]
    fn plain_text() {
        insta::assert_snapshot!(text(&document(), Style::default()), @r"
        membound 0.1.0 on box, Linux 6.12.0, a guest of KVM
        2026-01-02T03:04:05Z

        processor
          cpu                  AMD EPYC
          smt                  no two online CPUs share a core

        permissions
          msr                  not known: /dev/cpu/0/msr is not there: the msr module is
                               not loaded, or the kernel has none
                          → as root: modprobe msr

        what membound does here  1 full, 1 absent
          full     latency              emitted chains of dependent loads on 2 CPUs
          absent   2m pages             the hugetlb pool is empty
                          → as root: echo 576 >
                            /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_escapes_are_only_for_colour() {
        for width in [60, 80, 120] {
            let style = Style {
                color: false,
                width,
            };
            for line in text(&document(), style).lines() {
                assert!(line.chars().count() <= width, "{line}");
                assert_eq!(line, line.trim_end());
            }
        }
        let plain = text(&document(), Style::default());
        assert!(!plain.contains('\x1b'));
        let style = Style {
            color: true,
            ..Style::default()
        };
        let coloured = text(&document(), style);
        let mut stripped = String::new();
        let mut rest = coloured.as_str();
        while let Some(at) = rest.find('\x1b') {
            stripped.push_str(&rest[..at]);
            rest = &rest[at + rest[at..].find('m').unwrap() + 1..];
        }
        stripped.push_str(rest);
        assert_eq!(stripped, plain);
    }

    #[test]
    fn control_characters_of_others_do_not_reach_the_terminal() {
        let mut document = document();
        document.machine.host = "evil\x1b[2Jhost\n".to_owned();
        document.findings[0].key = "a\x07_key_that_is_longer_than_its_column".to_owned();
        let shown = text(&document, Style::default());
        assert!(!shown.contains('\x1b') && !shown.contains('\x07'));
        assert!(shown.contains("key that is longer than its column\n"));
    }
}
