//! Places a plan: computes everything that is written into a process whose module lies at a given address.

use std::ops::Range;

use membound_wire::TextEdit;
use rayon::prelude::*;

use super::EDIT;
use super::edit::Edit;
use super::format::{Number, Section, word};
use super::plan::{Layout, Plan, PlanBytes};
use super::pun::Pun;

/// Bytes of a page of islands.
pub const ISLAND_BYTES: usize = 4096;
/// Lowest address that a process may map.
const MIN_ADDRESS: u64 = 0x1_0000;
/// One past the highest address of a process.
const END_OF_ADDRESS_SPACE: u64 = 0x7fff_ffff_f000;

/// Where a module is mapped, and where its trampolines will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Difference between addresses in the process and addresses of the file.
    pub bias: u64,
    /// Start of the area for code, tables and data (see [`Layout`]): a multiple of 64, at most
    /// [`super::MAX_COLOUR_BYTES`] bytes after the start of the first page.
    pub area: u64,
}

/// Why a plan cannot be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// A jump or an operand cannot reach from the area to the module.
    #[error("the area at {area:#x} is out of reach of the module at {module:#x}")]
    TooFar {
        /// Start of the area.
        area: u64,
        /// Address of the module's first page.
        module: u64,
    },
    /// Parts of the plan contradict each other; names them.
    #[error("the plan's {0} are damaged; delete it and it is made anew")]
    Damaged(&'static str),
}

/// Everything to be written into the process.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Base of the offsets in the tables: the module's first page.
    pub base: u64,
    /// Code, to be written at the start of the area.
    pub code: Vec<u8>,
    /// Tables, to be written [`Layout::code_bytes`] after the start of the area; they begin with a
    /// [`membound_wire::TableHeader`].
    pub tables: PlanBytes,
    /// Jumps to install, sorted by address. An edit's `group` covers all bytes that its jump depends on: with
    /// an edit, every edit whose group overlaps it must be removed too.
    pub edits: Vec<TextEdit>,
    /// The numbers of the sites that depend on each of `edits`.
    pub sites: Vec<Range<u32>>,
    /// Pages that must be mapped (readable, executable) for some of the edits.
    pub islands: Vec<IslandPage>,
    /// The numbers of sites that cannot be patched because their island would be at an impossible address.
    pub lost: Vec<Range<u32>>,
}

/// A page of jumps to trampolines.
#[derive(Clone, Debug)]
pub struct IslandPage {
    /// Address the page must have; if that is taken, the edits that depend on the page cannot be made.
    pub address: u64,
    /// Contents, [`ISLAND_BYTES`] bytes.
    pub bytes: Vec<u8>,
    /// Indices into [`Placed::edits`] of the edits that depend on the page.
    pub edits: Vec<usize>,
}

impl Plan {
    /// Computes the contents of the area, the edits and the islands for a given placement.
    ///
    /// # Errors
    /// If the area is out of reach of the module, or the plan's bytes are damaged.
    pub fn place(&self, placement: &Placement) -> Result<Placed, PlaceError> {
        let origin = self.number(Number::Origin);
        let base = origin.wrapping_add(placement.bias);
        let placement = AreaPlacement {
            base,
            span: self.number(Number::Span),
            area: placement.area,
            layout: self.layout(),
        };
        if base < MIN_ADDRESS || !placement.is_valid() {
            return Err(placement.too_far());
        }
        let code = placement.code(self)?;
        let edits: Vec<Edit> = self.edits().collect();
        if edits.windows(2).any(|pair| pair[0].text >= pair[1].text) {
            return Err(PlaceError::Damaged("edits"));
        }
        let puns = Puns::of(self.puns().collect(), edits.len());
        let mut placed = Placed {
            base,
            code,
            tables: self.shared(Section::Tables),
            edits: Vec::with_capacity(edits.len()),
            sites: Vec::with_capacity(edits.len()),
            islands: Vec::new(),
            lost: Vec::new(),
        };
        let standing = placement.standing(&edits, &puns);
        // For each edit of the plan, its index in `placed`; the island pages refer to those.
        let mut indices: Vec<usize> = vec![usize::MAX; edits.len()];
        for (index, edit) in edits.iter().enumerate() {
            let sites = edit.first_site..edit.first_site.saturating_add(u32::from(edit.sites));
            if !standing[index] {
                placed.lost.push(sites);
                continue;
            }
            let number = u32::try_from(index).map_err(|_| PlaceError::Damaged("edits"))?;
            indices[index] = placed.edits.len();
            placed
                .edits
                .push(placement.edit(edit, puns.of_edit(number))?);
            placed.sites.push(sites);
        }
        placed.islands = placement.islands(&edits, &puns, &standing, &indices)?;
        Ok(placed)
    }
}

/// Punned jumps, found by the edit that they belong to.
struct Puns {
    all: Vec<Pun>,
    /// For each edit one more than the index of its pun in `all`, or 0.
    of: Vec<u32>,
}

impl Puns {
    fn of(mut all: Vec<Pun>, edits: usize) -> Self {
        // A damaged plan may name edits that do not exist, or name one twice.
        let mut of = vec![0; edits];
        let mut number = 0;
        all.retain(|pun| match of.get_mut(pun.edit as usize) {
            Some(index @ 0) => {
                number += 1;
                *index = number;
                true
            }
            _ => false,
        });
        Self { all, of }
    }

    fn of_edit(&self, edit: u32) -> Option<&Pun> {
        let number = *self.of.get(edit as usize)?;
        self.all.get((number as usize).checked_sub(1)?)
    }
}

/// Where module and area lie.
struct AreaPlacement {
    base: u64,
    span: u64,
    area: u64,
    layout: Layout,
}

impl AreaPlacement {
    fn is_valid(&self) -> bool {
        let end = self.area.checked_add(self.layout.bytes());
        self.area.is_multiple_of(64)
            && self.area >= MIN_ADDRESS
            && end.is_some_and(|end| end <= END_OF_ADDRESS_SPACE)
            && self
                .base
                .checked_add(self.span)
                .is_some_and(|end| end <= END_OF_ADDRESS_SPACE)
    }

    fn too_far(&self) -> PlaceError {
        PlaceError::TooFar {
            area: self.area,
            module: self.base,
        }
    }

    /// The displacement of a jump that ends at `end`.
    fn displacement(&self, end: u64, target: u64) -> Result<[u8; 4], PlaceError> {
        let distance = target.wrapping_sub(end).cast_signed();
        i32::try_from(distance)
            .map(i32::to_le_bytes)
            .map_err(|_| self.too_far())
    }

    fn trampoline(&self, edit: &Edit) -> u64 {
        self.area + u64::from(edit.code)
    }

    fn code(&self, plan: &Plan) -> Result<Vec<u8>, PlaceError> {
        let delta = self.base.wrapping_sub(self.area).cast_signed();
        let delta = i32::try_from(delta).map_err(|_| self.too_far())?;
        let mut code = plan.part(Section::Code).to_vec();
        let relocations = plan.part(Section::Relocations);
        // The code is relocated in pieces, each with the fields that begin in it; fields across a border are
        // relocated afterwards.
        let pieces = rayon::current_num_threads() * 4;
        let piece = code.len().div_ceil(pieces).max(4096);
        let length = code.len();
        let fields: Vec<&[u8]> = split(relocations, piece, length);
        let apply = |bytes: &mut [u8]| -> Result<(), PlaceError> {
            let field: [u8; 4] = (&*bytes)
                .try_into()
                .map_err(|_| PlaceError::Damaged("relocations"))?;
            let value = i32::from_le_bytes(field)
                .checked_add(delta)
                .ok_or(self.too_far())?;
            bytes.copy_from_slice(&value.to_le_bytes());
            Ok(())
        };
        let across: Vec<Vec<usize>> = code
            .par_chunks_mut(piece)
            .zip(fields)
            .enumerate()
            .map(|(index, (code, fields))| {
                let start = index * piece;
                let mut across = Vec::new();
                for field in fields.chunks_exact(4) {
                    let at = (word(field, 0) as usize)
                        .checked_sub(start)
                        .ok_or(PlaceError::Damaged("relocations"))?;
                    match code.get_mut(at..at + 4) {
                        Some(field) => apply(field)?,
                        None => across.push(start + at),
                    }
                }
                Ok(across)
            })
            .collect::<Result<_, PlaceError>>()?;
        for at in across.into_iter().flatten() {
            let field = code
                .get_mut(at..at.saturating_add(4))
                .ok_or(PlaceError::Damaged("relocations"))?;
            apply(field)?;
        }
        Ok(code)
    }

    /// For each edit, true if it can be made at this placement.
    fn standing(&self, edits: &[Edit], puns: &Puns) -> Vec<bool> {
        let mut standing = vec![true; edits.len()];
        // The edits that an edit depends on lie after it, so go backwards.
        for index in (0..edits.len()).rev() {
            let edit = &edits[index];
            let pun = u32::try_from(index)
                .ok()
                .and_then(|index| puns.of_edit(index));
            standing[index] = match pun {
                None => usize::from(edit.length) == EDIT,
                Some(pun) => {
                    let leans = pun.depends_on.is_none_or(|other| {
                        let other = other as usize;
                        other > index && standing.get(other) == Some(&true)
                    });
                    leans && self.island_is_possible(edit, pun)
                }
            };
        }
        standing
    }

    fn island_is_possible(&self, edit: &Edit, pun: &Pun) -> bool {
        let Some(island) = self.base.checked_add_signed(pun.island) else {
            return false;
        };
        let page = island & !(ISLAND_BYTES as u64 - 1);
        let end = page + ISLAND_BYTES as u64;
        let apart = |start: u64, bytes: u64| end <= start || page >= start + bytes;
        page >= MIN_ADDRESS
            && end <= END_OF_ADDRESS_SPACE
            && island + EDIT as u64 <= end
            && apart(self.area, self.layout.bytes())
            && apart(self.base, self.span)
            && self
                .displacement(island + EDIT as u64, self.trampoline(edit))
                .is_ok()
    }

    fn edit(&self, edit: &Edit, pun: Option<&Pun>) -> Result<TextEdit, PlaceError> {
        let address = self.base + u64::from(edit.text);
        let target = self.trampoline(edit);
        let length = usize::from(edit.length);
        if length > EDIT
            || u64::from(edit.code) >= self.layout.code_bytes
            || u64::from(edit.text) >= self.span
        {
            return Err(PlaceError::Damaged("edits"));
        }
        let mut old = [0; 8];
        old[..length].copy_from_slice(&edit.old[..length]);
        let mut new = [0; 8];
        match pun {
            Some(pun) => new[..length].copy_from_slice(&pun.new[..length]),
            None => {
                new[0] = 0xe9;
                let displacement = self.displacement(address + EDIT as u64, target)?;
                new[1..EDIT].copy_from_slice(&displacement);
            }
        }
        Ok(TextEdit {
            address,
            target,
            fingerprint: edit.fingerprint,
            group: edit.group,
            length: edit.length,
            starts: edit.starts,
            old,
            new,
        })
    }

    fn islands(
        &self,
        edits: &[Edit],
        puns: &Puns,
        standing: &[bool],
        indices: &[usize],
    ) -> Result<Vec<IslandPage>, PlaceError> {
        let mut pages: std::collections::BTreeMap<u64, IslandPage> = Default::default();
        for pun in &puns.all {
            let index = pun.edit as usize;
            let Some(edit) = edits.get(index).filter(|_| standing[index]) else {
                continue;
            };
            let island = self.base.wrapping_add_signed(pun.island);
            let at = (island % ISLAND_BYTES as u64) as usize;
            let page = page_of(&mut pages, island);
            let end = island + EDIT as u64;
            let displacement = self.displacement(end, self.trampoline(edit))?;
            let jump = page
                .bytes
                .get_mut(at..at + EDIT)
                .ok_or(PlaceError::Damaged("islands"))?;
            jump[0] = 0xe9;
            jump[1..].copy_from_slice(&displacement);
            page.edits.push(indices[index]);
            // The edit also depends on the islands of the edits it leans on. `standing` has checked that the
            // numbers only grow along this chain, so the loop ends.
            let mut depends_on = pun.depends_on;
            while let Some(next) = depends_on.and_then(|other| puns.of_edit(other)) {
                let island = self.base.wrapping_add_signed(next.island);
                page_of(&mut pages, island).edits.push(indices[index]);
                depends_on = next.depends_on;
            }
        }
        let mut pages: Vec<IslandPage> = pages.into_values().collect();
        for page in &mut pages {
            page.edits.sort_unstable();
            page.edits.dedup();
        }
        Ok(pages)
    }
}

fn page_of(
    pages: &mut std::collections::BTreeMap<u64, IslandPage>,
    island: u64,
) -> &mut IslandPage {
    let address = island & !(ISLAND_BYTES as u64 - 1);
    pages.entry(address).or_insert_with(|| IslandPage {
        address,
        // Fill with `int3`, so that a stray jump stops.
        bytes: vec![0xcc; ISLAND_BYTES],
        edits: Vec::new(),
    })
}

/// The part of `relocations` (sorted `u32` offsets) for each piece of `piece` bytes of the code, `length`
/// bytes in all.
fn split(relocations: &[u8], piece: usize, length: usize) -> Vec<&[u8]> {
    let count = relocations.len() / 4;
    let lower_bound = |limit: usize| {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if (word(relocations, 4 * middle) as usize) < limit {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    };
    let mut parts = Vec::new();
    let mut from = 0;
    for start in (0..length).step_by(piece) {
        // The last piece takes all that remain, so that offsets outside the code are noticed.
        let to = if start + piece >= length {
            count
        } else {
            lower_bound(start + piece).max(from)
        };
        parts.push(&relocations[4 * from..4 * to]);
        from = to;
    }
    parts
}
