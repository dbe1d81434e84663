//! Limits a profile to the size that a page can show.
//!
//! A symbol can have tens of thousands of characters, and a profile any number of rows. The JSON contains
//! what is left out here.

use std::borrow::Cow;

use crate::facts::plain;
use membound_types::{CallFrame, NamedShare, NumaView, Outcome, Profile, RunInfo, SharedLine};

/// Most characters of a name or a short text.
const MAX_NAME_CHARS: usize = 240;
/// Longest name, in bytes, whose arguments are parsed and removed.
const MAX_NAME_BYTES: usize = 4096;
const MAX_SENTENCE_CHARS: usize = 2000;
/// Most frames of an allocation's call chain.
const MAX_FRAMES: usize = 48;
const MAX_FINDINGS: usize = 40;
const MAX_SHARED_LINES: usize = 20;
const MAX_MEMBERS: usize = 64;
const MAX_DOMAINS: usize = 32;
const MAX_GAPS: usize = 60;

/// Cuts the middle out of a text with more than `most` characters.
pub(super) fn short(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most || text.char_indices().nth(most).is_none() {
        return Cow::Borrowed(text);
    }
    let head = most / 2;
    let tail = most.saturating_sub(head + 1);
    let head_end = text.char_indices().nth(head).map_or(0, |it| it.0);
    let tail_start = tail
        .checked_sub(1)
        .and_then(|tail| text.char_indices().rev().nth(tail))
        .map_or(text.len(), |it| it.0);
    Cow::Owned(format!("{}…{}", &text[..head_end], &text[tail_start..]))
}

fn cut_to(text: &mut String, letters: usize) {
    if let Cow::Owned(shortened) = short(text, letters) {
        *text = shortened;
    }
}

/// Shortens a name: a function's arguments are removed first, so that brackets stay balanced.
fn truncate(text: &mut String) {
    if let Cow::Owned(shortened) = short_name(text, MAX_NAME_CHARS) {
        *text = shortened;
    }
}

/// If a name has more than `most` characters, removes its arguments, and then its middle if it is still too
/// long.
pub(super) fn short_name(text: &str, most: usize) -> Cow<'_, str> {
    match short(text, most) {
        // No compiler produces longer names.
        Cow::Owned(_) if text.len() <= MAX_NAME_BYTES => {
            Cow::Owned(short(&plain(text), most).into_owned())
        }
        other => other,
    }
}

fn cut_frames(frames: &mut Vec<CallFrame>) {
    frames.truncate(MAX_FRAMES);
    for frame in frames {
        truncate(&mut frame.function);
        truncate(&mut frame.module);
        frame.file.iter_mut().for_each(truncate);
    }
}

fn cut_shares(shares: &mut Vec<NamedShare>) {
    shares.truncate(MAX_MEMBERS);
    shares
        .iter_mut()
        .for_each(|share| truncate(&mut share.name));
}

fn cut_lines(lines: &mut Vec<SharedLine>) {
    lines.truncate(MAX_SHARED_LINES);
    for line in lines {
        truncate(&mut line.object);
        cut_to(&mut line.advice, MAX_SENTENCE_CHARS);
        cut_frames(&mut line.alloc_stack);
        line.threads.truncate(MAX_MEMBERS);
        line.threads
            .iter_mut()
            .for_each(|it| truncate(&mut it.name));
        line.sites.truncate(MAX_MEMBERS);
        for site in &mut line.sites {
            truncate(&mut site.name);
            truncate(&mut site.function);
        }
    }
}

fn cut_run(run: &mut RunInfo) {
    for text in [
        &mut run.host,
        &mut run.cpu,
        &mut run.date,
        &mut run.membound_version,
        &mut run.timer,
    ] {
        truncate(text);
    }
    run.command.truncate(MAX_MEMBERS);
    run.command.iter_mut().for_each(truncate);
}

fn cut_numa(view: &mut NumaView) {
    view.matrix.truncate(MAX_MEMBERS);
    view.matrix
        .iter_mut()
        .for_each(|row| row.truncate(MAX_MEMBERS));
    for list in [&mut view.objects, &mut view.lines] {
        list.truncate(MAX_MEMBERS);
        for row in list {
            truncate(&mut row.name);
            cut_to(&mut row.advice, MAX_SENTENCE_CHARS);
        }
    }
}

/// Copy of the profile with shortened names and lists.
pub(super) fn bounded(profile: &Profile, rows: usize) -> Profile {
    let mut out = profile.clone();
    cut_run(&mut out.run);
    if let Some(view) = &mut out.hardware {
        for row in &mut view.functions {
            truncate(&mut row.name);
            truncate(&mut row.module);
        }
        let lines = view.changed_lines.iter_mut();
        lines.flat_map(|row| &mut row.functions).for_each(truncate);
    }
    out.findings.truncate(MAX_FINDINGS);
    for finding in &mut out.findings {
        for text in [
            &mut finding.text,
            &mut finding.advice,
            &mut finding.threshold,
        ] {
            cut_to(text, MAX_SENTENCE_CHARS);
        }
    }
    for list in [&mut out.functions, &mut out.lines, &mut out.instructions] {
        list.truncate(rows);
        for row in list {
            truncate(&mut row.name);
            truncate(&mut row.function);
            truncate(&mut row.module);
            row.file.iter_mut().for_each(truncate);
        }
    }
    out.threads.iter_mut().for_each(|it| truncate(&mut it.name));
    out.levels.iter_mut().for_each(|it| truncate(&mut it.name));
    out.objects.truncate(rows);
    for object in &mut out.objects {
        truncate(&mut object.name);
        cut_frames(&mut object.alloc_stack);
    }
    cut_lines(&mut out.false_sharing);
    cut_lines(&mut out.true_sharing);
    if let Outcome::Known(view) = &mut out.numa {
        cut_numa(view);
    }
    // The page computes pairs from samples; the table is for the terminal and for other programs.
    out.function_objects.clear();
    if let Outcome::Known(memory) = &mut out.memory {
        memory.objects.truncate(MAX_MEMBERS);
        memory
            .objects
            .iter_mut()
            .for_each(|it| truncate(&mut it.name));
    }
    out.bandwidth.truncate(MAX_DOMAINS);
    for domain in &mut out.bandwidth {
        truncate(&mut domain.domain);
        cut_shares(&mut domain.objects);
        cut_shares(&mut domain.lines);
    }
    out.elsewhere.truncate(MAX_MEMBERS);
    out.elsewhere
        .iter_mut()
        .for_each(|it| truncate(&mut it.machine));
    out.missing.truncate(MAX_GAPS);
    for gap in &mut out.missing {
        truncate(&mut gap.table);
        cut_to(&mut gap.why.reason, MAX_SENTENCE_CHARS);
        gap.why
            .remedy
            .iter_mut()
            .for_each(|it| cut_to(it, MAX_SENTENCE_CHARS));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_functions_lose_their_arguments_first() {
        let name = format!(
            "std::_Rb_tree<{}>::_S_right(int)",
            "std::pair<int, int>, ".repeat(20)
        );
        assert_eq!(short_name(&name, 240), "std::_Rb_tree::_S_right");
        assert_eq!(short_name(&name, 9), "std:…ight");
        assert_eq!(short_name("f<int>()", 240), "f<int>()");
    }
}
