//! The trampolines of one module in one address space: installed, removed, read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use membound_rewrite::patch::{
    ISLAND_BYTES, Layout, MAX_COLOUR_BYTES, Placed, Placement, Plan, Refusal,
};
use membound_wire::{LEAD_IN, Probe, Protection, Slots, TextEdit, TextMode, fingerprint};
use rustc_hash::FxHashSet;

use crate::choice::Pace;
use crate::conversation::{Conversation, Failure};
use crate::maps::{self, Mapping};
use crate::memfd;
use crate::modules::Loaded;
use crate::orders::Part;
use crate::room;
use crate::standing::Trampolines;

mod groups;
mod withdraw;

use groups::{clusters, group};

/// Times that another free range is searched for because a thread of the program took the previous one.
const ATTEMPTS: usize = 8;

/// Why a module could not be patched in a process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotInstalled {
    #[error(transparent)]
    Failure(#[from] Failure),
    #[error("there is no free address range within reach of it")]
    NoRoom,
    #[error("{0}")]
    Plan(String),
}

impl From<io::Error> for NotInstalled {
    fn from(error: io::Error) -> Self {
        Self::Failure(error.into())
    }
}

impl NotInstalled {
    /// True if the program has ended.
    pub(crate) const fn is_gone(&self) -> bool {
        matches!(self, Self::Failure(Failure::Gone(_)))
    }

    /// True if it may be possible a while later.
    pub(crate) const fn is_passing(&self) -> bool {
        match self {
            Self::Failure(failure) => failure.passing(),
            Self::NoRoom | Self::Plan(_) => false,
        }
    }
}

/// Installed trampolines.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) loaded: Loaded,
    /// Address range of code, tables and data.
    whole: Range<u64>,
    /// The data by which threads are inspected from outside.
    pub(crate) trampolines: Arc<Trampolines>,
    islands: Vec<Range<u64>>,
    /// Protection of the code, as mapped.
    protection: u32,
    data: File,
    /// Inode of `data`, which identifies its mappings in every process that inherits them.
    pub(crate) inode: u64,
    /// Jumps to its trampolines, sorted by address.
    edits: Vec<TextEdit>,
    /// The numbers of the sites of each edit.
    sites: Vec<Range<u32>>,
    /// The numbers of the sites without an edit: their trampolines' addresses were impossible.
    unplaced: Vec<Range<u32>>,
    /// Number of sites that could not be placed, by reason.
    pub(crate) lost: BTreeMap<Refusal, u64>,
    /// Groups whose jump was never installed: first address and end.
    barred: BTreeMap<u64, u64>,
    /// Groups whose text the program was about to change itself: they are not installed again in any
    /// process. In other processes that share the area they may still be installed, and can be removed.
    withdrawn: Mutex<BTreeMap<u64, u64>>,
    /// Text that its installed edits overwrite, and the addresses to which their trampolines return.
    seams: Seams,
}

/// Settings that all areas of a process share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// The agent's entry points.
    pub(crate) entries: [u64; 8],
    /// Mean number of executions between samples.
    pub(crate) period: u32,
    /// Not 0 during a recording burst.
    pub(crate) burst: u32,
    /// Protection of code: a [`Protection`].
    pub(crate) code: u32,
}

/// Upper limit of the period: a countdown is a signed 32-bit number, drawn up to twice the period.
const MAX_PERIOD: u32 = 1 << 30;

impl Area {
    /// Maps and registers the trampolines of `plan`, and installs the jumps to them. Also returns whether
    /// nothing was left out that may be possible a moment later.
    pub(crate) fn install(
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        loaded: &Loaded,
        plan: &Plan,
        common: Common,
        number: u32,
        text: Text<'_>,
    ) -> Result<(Self, bool), NotInstalled> {
        let layout = plan.layout();
        let length = layout.bytes();
        let data = memfd::zeroed("membound-data", layout.data_bytes)?;
        let inode = data.metadata()?.ino();
        let heap = conversation.heap_start();
        let islands: Vec<Range<u64>> = plan
            .island_pages()
            .map(|page| page.wrapping_add(loaded.bias))
            .map(|page| page..page.wrapping_add(ISLAND_BYTES as u64))
            .collect();
        let mut attempt = 0;
        loop {
            let at = room::find(maps, heap, &islands, &loaded.span(), length)
                .ok_or(NotInstalled::NoRoom)?;
            let colour = colour(at);
            let placed = plan
                .place(&Placement {
                    bias: loaded.bias,
                    area: at + colour,
                })
                .map_err(|error| NotInstalled::Plan(error.to_string()))?;
            write_slots(&data, colour, common, number)?;
            let mapped = Mapped::make(conversation, at, layout, &placed, &data, common);
            match mapped {
                Ok(mapped) => {
                    let area = Self {
                        loaded: loaded.clone(),
                        whole: at..at + length,
                        trampolines: mapped.trampolines,
                        islands: Vec::new(),
                        protection: common.code,
                        data,
                        inode,
                        lost: BTreeMap::new(),
                        barred: BTreeMap::new(),
                        withdrawn: Mutex::default(),
                        seams: Seams::default(),
                        edits: placed.edits.clone(),
                        sites: placed.sites.clone(),
                        unplaced: placed.lost.clone(),
                    };
                    // The next module's trampolines must not be placed here.
                    maps::add(maps, area.whole.clone(), area.inode);
                    return area.begin(conversation, maps, &placed, text);
                }
                Err(failure) if failure.occupied() && attempt < ATTEMPTS => {
                    attempt += 1;
                    *maps = maps::of(conversation.pid)?;
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Maps the islands, then changes the text. If no text can be changed, everything is unmapped again.
    fn begin(
        mut self,
        conversation: &Conversation,
        maps: &[Mapping],
        placed: &Placed,
        text: Text<'_>,
    ) -> Result<(Self, bool), NotInstalled> {
        match self.lead(conversation, maps, placed, text) {
            Ok(is_final) => Ok((self, is_final)),
            Err(failure) => {
                if !matches!(failure, Failure::Gone(_)) {
                    // The first error is the one to report.
                    let _ = self.unmap(conversation);
                }
                Err(failure.into())
            }
        }
    }

    fn lead(
        &mut self,
        conversation: &Conversation,
        maps: &[Mapping],
        placed: &Placed,
        text: Text<'_>,
    ) -> Result<bool, Failure> {
        let unplaced = placed
            .lost
            .iter()
            .map(|sites| u64::from(sites.end - sites.start));
        self.lose(Refusal::NoIsland, unplaced.sum());
        let mut barred = self.map_islands(conversation, maps, placed)?;
        with_dependents(&placed.edits, &mut barred);
        self.lose(Refusal::NoIsland, sites(placed, &barred));
        let mut crossing: BTreeSet<usize> = (0..placed.edits.len())
            .filter(|index| {
                let edit = &placed.edits[*index];
                text.others.iter().any(|other| other.seams.cross(edit))
            })
            .collect();
        with_dependents(&placed.edits, &mut crossing);
        crossing.retain(|index| !barred.contains(index));
        self.lose(Refusal::NoRoom, sites(placed, &crossing));
        barred.extend(crossing);
        let wanted: Vec<usize> = (0..placed.edits.len())
            .filter(|index| !barred.contains(index))
            .collect();
        let edits: Vec<TextEdit> = wanted.iter().map(|index| placed.edits[*index]).collect();
        self.seams = Seams::of(&edits);
        let left_out = conversation.text(&edits, text.mode)?;
        // The agent also reports edits whose jumps lead through the bytes of a differing one.
        let differing = left_out.differing.iter();
        let differing: BTreeSet<usize> = differing.map(|index| wanted[*index as usize]).collect();
        self.lose(Refusal::TextDiffers, sites(placed, &differing));
        barred.extend(differing);
        let groups = barred.iter().map(|index| group(&placed.edits[*index]));
        self.barred.extend(groups);
        Ok(left_out.is_final())
    }

    /// Maps the pages that punned jumps lead to, neighbouring pages together. Returns the indices of the
    /// edits that cannot be made because their page is occupied.
    fn map_islands(
        &mut self,
        conversation: &Conversation,
        maps: &[Mapping],
        placed: &Placed,
    ) -> Result<BTreeSet<usize>, Failure> {
        let mut barred = BTreeSet::new();
        if placed.islands.is_empty() {
            return Ok(barred);
        }
        let mut bytes = Vec::new();
        // Runs of neighbouring pages: addresses, offset in the file, indices of islands.
        let mut runs: Vec<(Range<u64>, u64, Range<usize>)> = Vec::new();
        for (index, island) in placed.islands.iter().enumerate() {
            let range = island.address..island.address + island.bytes.len() as u64;
            if !room::is_free(maps, &range) {
                barred.extend(island.edits.iter().copied());
                continue;
            }
            match runs.last_mut() {
                Some((run, _, islands)) if run.end == range.start && islands.end == index => {
                    run.end = range.end;
                    islands.end = index + 1;
                }
                _ => runs.push((range, bytes.len() as u64, index..index + 1)),
            }
            bytes.extend_from_slice(&island.bytes);
        }
        let file = memfd::with("membound-islands", &bytes)?;
        let parts: Vec<Part<'_>> = runs
            .iter()
            .map(|(range, offset, _)| Part {
                at: range.clone(),
                memory: file.as_fd(),
                offset: *offset,
                protection: self.protection,
            })
            .collect();
        let mapped = conversation.map_each(&parts)?;
        for ((range, _, islands), mapped) in runs.into_iter().zip(mapped) {
            match mapped {
                Ok(()) => self.islands.push(range),
                Err(Failure::Gone(error)) => return Err(Failure::Gone(error)),
                Err(Failure::Refused { .. }) => {
                    let edits = placed.islands[islands].iter().flat_map(|it| &it.edits);
                    barred.extend(edits.copied());
                }
            }
        }
        self.trampolines
            .islands
            .set(self.islands.clone())
            .expect("islands are mapped once, before anything leads to them");
        Ok(barred)
    }

    fn lose(&mut self, reason: Refusal, sites: u64) {
        if sites > 0 {
            *self.lost.entry(reason).or_default() += sites;
        }
    }

    /// True if any part of `range` belongs to the module.
    pub(crate) fn touches(&self, range: &Range<u64>) -> bool {
        let span = self.loaded.span();
        span.start < range.end && range.start < span.end
    }

    /// True if the jumps at `addresses` (in the file) were installed.
    pub(crate) fn holds(&self, mut addresses: impl Iterator<Item = u64>) -> bool {
        let withdrawn = self.withdrawn();
        addresses.all(|address| {
            let address = address.wrapping_add(self.loaded.bias);
            [&self.barred, &*withdrawn].iter().all(|groups| {
                let before = groups.range(..=address).next_back();
                before.is_none_or(|(_, end)| *end <= address)
            })
        })
    }

    /// The numbers of the sites whose patches were not installed.
    pub(crate) fn left_out(&self) -> Vec<Range<u32>> {
        let withdrawn = self.withdrawn();
        let is_out = |edit: &TextEdit| !self.was_led(edit) || withdrawn.contains_key(&edit.address);
        let edits = self.edits.iter().zip(&self.sites);
        let of_edits = edits.filter(|(edit, _)| is_out(edit));
        let sites = of_edits.map(|(_, sites)| sites.clone());
        sites.chain(self.unplaced.iter().cloned()).collect()
    }

    /// Removes the patches in `range`, except those at system calls that the agent hooks if they may come
    /// back: without them the program would bypass the agent meanwhile. Edits that are not installed are
    /// skipped: each process has its own text, whichever process it inherited that from.
    pub(crate) fn remove(
        &self,
        conversation: &Conversation,
        plan: &Plan,
        range: &Range<u64>,
        mode: TextMode,
        bar: Bar,
    ) -> Result<(), NotInstalled> {
        let edits = self.out(plan, range, bar);
        conversation.text(&edits, mode)?;
        Ok(())
    }

    /// The edits that remove all patches that may come back.
    pub(crate) fn all_out(&self) -> Vec<TextEdit> {
        match &self.loaded.module.plan {
            Ok(plan) => self.out(plan, &self.loaded.span(), Bar::No),
            Err(_) => Vec::new(),
        }
    }

    /// The edits that install all patches again that were removed and may be there.
    pub(crate) fn all_in(&self) -> Vec<TextEdit> {
        let withdrawn = self.withdrawn();
        let may_stand =
            |edit: &&TextEdit| self.was_led(edit) && !withdrawn.contains_key(&edit.address);
        self.edits.iter().filter(may_stand).copied().collect()
    }

    /// True if the edit was made when the area was installed.
    fn was_led(&self, edit: &TextEdit) -> bool {
        !self.barred.contains_key(&edit.address)
    }

    fn withdrawn(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.withdrawn
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The edits that remove the patches in `range`.
    fn out(&self, plan: &Plan, range: &Range<u64>, bar: Bar) -> Vec<TextEdit> {
        let all = &self.edits;
        let mut chosen: BTreeSet<usize> = (0..all.len())
            .filter(|index| {
                let (start, end) = overwritten(&all[*index]);
                start < range.end && range.start < end
            })
            .collect();
        if bar == Bar::No {
            for index in self.hooking(plan, all) {
                chosen.remove(&index);
            }
        }
        with_dependents(all, &mut chosen);
        let standing = |index: &usize| self.was_led(&all[*index]);
        let edits = chosen
            .iter()
            .filter(|index| standing(index))
            .filter_map(|index| self.reverse(all, *index, &standing))
            .collect();
        if bar == Bar::Forever {
            let groups = chosen.iter().map(|index| group(&all[*index]));
            self.withdrawn().extend(groups);
        }
        edits
    }

    /// Indices of the edits at system calls that the agent hooks, and of those that share bytes with them,
    /// directly or through others.
    fn hooking(&self, plan: &Plan, edits: &[TextEdit]) -> Vec<usize> {
        let bias = self.loaded.bias;
        let hooks = plan
            .hooks()
            .filter(|hook| hook.is_hooked())
            .map(|hook| hook.address.wrapping_add(bias));
        let hooks: BTreeSet<u64> = hooks.collect();
        let is_hooking = |cluster: &Range<usize>| {
            let members = edits.get(cluster.clone()).unwrap_or_default();
            let mut groups = members.iter().map(group);
            groups.any(|(start, end)| hooks.range(start..end).next().is_some())
        };
        clusters(edits).filter(is_hooking).flatten().collect()
    }

    /// Unmaps the trampolines of a module that is gone, or whose text is original again.
    pub(crate) fn unmap(&self, conversation: &Conversation) -> Result<(), Failure> {
        conversation.forget(self.trampolines.code.start)?;
        for island in &self.islands {
            conversation.unmap(island)?;
        }
        conversation.unmap(&self.whole)
    }

    /// Starts a recording burst of about this many accesses; 0 ends it.
    pub(crate) fn set_burst(&self, burst: u32) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let at = self.colour() + std::mem::offset_of!(Slots, burst) as u64;
        self.data.write_all_at(&burst.to_ne_bytes(), at)
    }

    /// Sets the pace of the probe whose words begin at `at`. The probe must not be installed: executions
    /// meanwhile may be counted wrong.
    pub(crate) fn arm(&self, at: usize, pace: Pace) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let at = self.colour() + at as u64;
        let mut words = [0; size_of::<Probe>()];
        memfd::read(&self.data, at, &mut words)?;
        let done = sampled(&words);
        // Uniform from 1 to twice the period, so that windows do not lock onto a period of the program.
        let mut drawn = DefaultHasher::new();
        (done, at).hash(&mut drawn);
        let span = u64::from(pace.period.clamp(1, MAX_PERIOD)) * 2;
        let armed = 1 + i32::try_from(drawn.finish() % span).unwrap_or(0) - LEAD_IN;
        let mut bytes = Vec::with_capacity(words.len());
        bytes.extend(armed.to_ne_bytes());
        bytes.extend(armed.to_ne_bytes());
        bytes.extend(done.to_ne_bytes());
        bytes.extend(pace.period.to_ne_bytes());
        bytes.extend(pace.samples.to_ne_bytes());
        self.data.write_all_at(&bytes, at)
    }

    /// Reads the data that the sites write: everything behind [`Slots`].
    pub(crate) fn words(&self) -> io::Result<Vec<u8>> {
        let length = self.data.metadata()?.len() - self.colour();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        memfd::read(&self.data, self.colour(), &mut bytes)?;
        Ok(bytes)
    }

    /// Bytes from the start of a page to the start of each part of the area.
    fn colour(&self) -> u64 {
        self.trampolines.code.start - self.whole.start
    }

    /// Address range of its trampolines.
    pub(crate) fn code(&self) -> &Range<u64> {
        &self.trampolines.code
    }

    /// Everything that belongs to the area in its process.
    pub(crate) fn place(&self, plan: &Plan) -> Result<Placed, NotInstalled> {
        plan.place(&Placement {
            bias: self.loaded.bias,
            area: self.trampolines.code.start,
        })
        .map_err(|error| NotInstalled::Plan(error.to_string()))
    }

    /// The edit that undoes the one at `index`, where the edits in `standing` behind it are installed.
    fn reverse(
        &self,
        edits: &[TextEdit],
        index: usize,
        standing: &dyn Fn(&usize) -> bool,
    ) -> Option<TextEdit> {
        let edit = &edits[index];
        let address = edit.address.wrapping_sub(self.loaded.bias);
        let original = self.loaded.module.bytes(address, u64::from(edit.group))?;
        let mut patched = original.to_vec();
        for (at, other) in (index..).zip(&edits[index..]) {
            let offset = usize::try_from(other.address - edit.address).ok()?;
            let Some(room) = patched.get_mut(offset..).filter(|room| !room.is_empty()) else {
                break;
            };
            if standing(&at) {
                let length = usize::from(other.length).min(room.len());
                room[..length].copy_from_slice(other.new.get(..length)?);
            }
        }
        Some(TextEdit {
            target: edit.address,
            fingerprint: fingerprint(&patched),
            old: edit.new,
            new: edit.old,
            ..*edit
        })
    }
}

/// The text into which trampolines are installed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) mode: TextMode,
    /// Areas that were installed in it before, if threads may still be in their trampolines.
    pub(crate) others: &'a [Arc<Area>],
}

/// Addresses at which an area's trampolines and the program's text meet.
///
/// A thread may stay in a trampoline for any time, also long after the text is original again, and then
/// returns to the instruction behind the group. Another plan for the same text must not have put the middle
/// of a jump there.
#[derive(Debug, Default)]
struct Seams {
    /// Overwritten ranges: first address and end, sorted.
    overwritten: Vec<(u64, u64)>,
    /// Addresses to which trampolines return, sorted.
    exits: Vec<u64>,
}

impl Seams {
    fn of(edits: &[TextEdit]) -> Self {
        let mut overwritten: Vec<(u64, u64)> = edits.iter().map(overwritten).collect();
        let mut exits: Vec<u64> = edits.iter().map(|edit| group(edit).1).collect();
        overwritten.sort_unstable();
        exits.sort_unstable();
        Self { overwritten, exits }
    }

    /// True if `edit`, of another plan, and these conflict.
    fn cross(&self, edit: &TextEdit) -> bool {
        let (first, end) = overwritten(edit);
        let behind = self.exits.partition_point(|exit| *exit <= first);
        if self.exits.get(behind).is_some_and(|exit| *exit < end) {
            return true;
        }
        let exit = group(edit).1;
        let before = self.overwritten.partition_point(|(first, _)| *first < exit);
        before > 0 && exit < self.overwritten[before - 1].1
    }
}

/// First address and end of the bytes that `edit` changes.
fn overwritten(edit: &TextEdit) -> (u64, u64) {
    (edit.address, edit.address + u64::from(edit.length))
}

/// Adds to `chosen` those edits whose jumps lead through the bytes of a chosen one.
fn with_dependents(edits: &[TextEdit], chosen: &mut BTreeSet<usize>) {
    if chosen.is_empty() {
        return;
    }
    // The edits that an edit leads through are behind it.
    for index in (0..edits.len()).rev() {
        let end = group(&edits[index]).1;
        let leans = (index + 1..edits.len())
            .take_while(|other| edits[*other].address < end)
            .any(|other| chosen.contains(&other));
        if leans {
            chosen.insert(index);
        }
    }
}

/// Number of sites that depend on the edits at `indices`.
fn sites(placed: &Placed, indices: &BTreeSet<usize>) -> u64 {
    let sites = indices.iter().filter_map(|index| placed.sites.get(*index));
    sites
        .map(|sites| u64::from(sites.end.saturating_sub(sites.start)))
        .sum()
}

/// Whether removed patches may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bar {
    /// They may.
    No,
    /// They may not: the program will change the text itself.
    Forever,
}

/// The mappings of an area.
struct Mapped {
    trampolines: Arc<Trampolines>,
}

impl Mapped {
    fn make(
        conversation: &Conversation,
        at: u64,
        layout: Layout,
        placed: &Placed,
        data: &File,
        common: Common,
    ) -> Result<Self, Failure> {
        let code = at..at + layout.code_bytes;
        let tables = code.end..code.end + layout.tables_bytes;
        let data_at = tables.end..tables.end + layout.data_bytes;
        let colour = colour(at);
        let before = usize::try_from(colour).unwrap_or(0);
        let mut bytes = vec![0xcc; before];
        bytes.extend_from_slice(&placed.code);
        bytes.resize(usize::try_from(layout.code_bytes).unwrap_or(0), 0xcc);
        bytes.resize(bytes.len() + before, 0);
        bytes.extend_from_slice(&placed.tables);
        bytes.resize(
            usize::try_from(layout.code_bytes + layout.tables_bytes).unwrap_or(0),
            0,
        );
        let file = memfd::with("membound-code", &bytes)?;
        let trampolines = Arc::new(Trampolines {
            code: code.start + colour..code.end,
            base: placed.base,
            tables: placed.tables.clone(),
            agent: conversation.agent(),
            islands: OnceLock::new(),
        });
        let tables_at = tables.start + colour;
        let parts = [
            Part {
                at: code,
                memory: file.as_fd(),
                offset: 0,
                protection: common.code,
            },
            Part {
                at: tables,
                memory: file.as_fd(),
                offset: layout.code_bytes,
                protection: Protection::READ,
            },
            Part {
                at: data_at,
                memory: data.as_fd(),
                offset: 0,
                protection: Protection::READ_WRITE | Protection::SHARED,
            },
        ];
        conversation.map_area(&parts, &trampolines, tables_at)?;
        Ok(Self { trampolines })
    }
}

/// Offset of an area's parts from the starts of their pages: a pseudo-random number of cache lines, from
/// its address `at`.
const fn colour(at: u64) -> u64 {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (at >> 12).wrapping_mul(SPREAD) >> 52 & !63
}

const _: () = assert!(colour(u64::MAX) <= MAX_COLOUR_BYTES);

fn write_slots(data: &File, at: u64, common: Common, number: u32) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut bytes = Vec::with_capacity(size_of::<Slots>());
    for entry in common.entries {
        bytes.extend(entry.to_ne_bytes());
    }
    for word in [common.burst, common.period, number] {
        bytes.extend(word.to_ne_bytes());
    }
    data.write_all_at(&bytes, at)
}

/// Executions counted by a [`Probe`]'s words.
pub(crate) fn sampled(words: &[u8]) -> u64 {
    let word = |at: usize| {
        let field = words.get(at..).and_then(<[u8]>::first_chunk);
        i64::from(field.copied().map_or(0, i32::from_ne_bytes))
    };
    let done = words.get(8..).and_then(<[u8]>::first_chunk);
    let done = done.copied().map_or(0, u64::from_ne_bytes);
    // The countdown is below zero only until the probe is armed again.
    done.saturating_add_signed(word(4) - word(0))
}

/// Areas of `areas` whose memory a process with these mappings shares.
pub(crate) fn inherited(maps: &[Mapping], areas: &[Arc<Area>]) -> Vec<Arc<Area>> {
    let mapped: FxHashSet<u64> = maps
        .iter()
        .filter(|map| map.shared && map.deleted())
        .map(|map| map.inode)
        .collect();
    let areas = areas.iter();
    areas
        .filter(|area| mapped.contains(&area.inode))
        .map(Arc::clone)
        .collect()
}

/// An edit for tests.
#[cfg(test)]
pub(crate) fn edit(address: u64, group: u16) -> TextEdit {
    TextEdit {
        address,
        target: 0,
        fingerprint: 0,
        group,
        length: 5,
        starts: 1,
        old: [0; 8],
        new: [0; 8],
    }
}
