//! Sites (instructions that access memory), and which of them sampled instructions waited for.

use std::collections::BTreeMap;
use std::sync::Arc;

use membound_launch::Registers;
use membound_rewrite::stall::{Bases, CodeFunction, Effective, SiteInfo, SiteKind, Wait};
use membound_run::{Attribution, Frame, FrameId, ModuleId, Site, SiteId};
use rustc_hash::FxHashMap;

use crate::modules::CodeModule;

/// An access that a sampled instruction may have waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Waited {
    /// The access; `None` if the instruction did not wait for memory.
    pub(crate) site: Option<SiteId>,
    /// Its address in the file.
    pub(crate) address: u64,
    /// Share of the instruction's samples, 0 to 1.
    pub(crate) share: f64,
    /// Confidence in that attribution, 0 to 1.
    pub(crate) confidence: f64,
}

/// Result of decoding the code around a sampled instruction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Studied {
    /// What it may have waited for.
    pub(crate) waits: Vec<Wait>,
    /// Data of the accesses among them, by address, as far as they were decoded.
    pub(crate) sites: Vec<(u64, SiteInfo)>,
}

impl Studied {
    /// Finds what the instruction at `address` may have waited for, and decodes those accesses.
    pub(crate) fn of(function: &CodeFunction, address: u64) -> Self {
        let waits = function.waits(address);
        let sites = waits.iter().filter_map(|wait| wait.site);
        let sites = sites.filter_map(|site| Some((site, function.site(site)?)));
        Self {
            sites: sites.collect(),
            waits,
        }
    }

    /// Address of the access that it most likely waited for; `None` if it did not wait for memory.
    pub(crate) fn likeliest(&self) -> Option<u64> {
        let site = self.waits.first()?.site?;
        self.sites
            .iter()
            .any(|(known, _)| *known == site)
            .then_some(site)
    }

    /// Removes the data of the access at an address.
    fn take(&mut self, address: u64) -> Option<SiteInfo> {
        let at = self.sites.iter().position(|(site, _)| *site == address)?;
        Some(self.sites.swap_remove(at).1)
    }
}

/// Stores of a loop that are added for a site, at most.
const MAX_LOOP_STORES: usize = 4;

/// All sites of a run.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    numbers: BTreeMap<(ModuleId, u64), SiteId>,
    places: Vec<(Arc<CodeModule>, u64)>,
    rows: Vec<Site>,
    /// Index from which on rows are new.
    taken: usize,
    /// Sites whose rows changed after they were written.
    changed: Vec<SiteId>,
    /// By the frame of the sampled instruction.
    waits: FxHashMap<FrameId, Arc<[Waited]>>,
    /// Accesses of the preceding blocks, by the same; `None` where no block begins.
    before: FxHashMap<FrameId, Option<Arc<[SiteId]>>>,
    /// Stores in the loop around a site.
    loop_stores: FxHashMap<SiteId, Arc<[SiteId]>>,
    attributions: Vec<Attribution>,
    /// Sampled instructions, by module and address.
    leaves: Vec<(ModuleId, u64)>,
}

impl Sites {
    /// The number of the site at an address of a module's file, added if it is new; `None` if the instruction
    /// there does not access memory.
    pub(crate) fn of(
        &mut self,
        module: &Arc<CodeModule>,
        address: u64,
        frame: impl FnOnce(Frame) -> FrameId,
    ) -> Option<SiteId> {
        self.of_known(module, address, frame, || None)
    }

    /// The same where `info` may have the data of the site already.
    fn of_known(
        &mut self,
        module: &Arc<CodeModule>,
        address: u64,
        frame: impl FnOnce(Frame) -> FrameId,
        info: impl FnOnce() -> Option<SiteInfo>,
    ) -> Option<SiteId> {
        if let Some(number) = self.numbers.get(&(module.id, address)) {
            return Some(*number);
        }
        let info = info().or_else(|| module.code()?.site(address))?;
        let number = SiteId(u32::try_from(self.rows.len()).ok()?);
        self.numbers.insert((module.id, address), number);
        self.places.push((Arc::clone(module), address));
        let frame = frame(Frame {
            module: Some(module.id),
            address,
        });
        self.rows.push(row(frame, info));
        Some(number)
    }

    /// The number of a site that was added before.
    pub(crate) fn known(&self, module: ModuleId, address: u64) -> Option<SiteId> {
        self.numbers.get(&(module, address)).copied()
    }

    /// Module and address of all sampled instructions and all sites.
    pub(crate) fn met(&self) -> impl Iterator<Item = (ModuleId, u64)> + '_ {
        let accesses = self.numbers.keys().copied();
        self.leaves.iter().copied().chain(accesses)
    }

    /// Module and address of a site.
    pub(crate) fn place(&self, site: SiteId) -> Option<(&Arc<CodeModule>, u64)> {
        self.places
            .get(site.index())
            .map(|(module, address)| (module, *address))
    }

    /// All known sites of the same function, itself included.
    pub(crate) fn near(&self, site: SiteId) -> impl Iterator<Item = SiteId> + '_ {
        let place = self.place(site);
        let function = place.and_then(|(module, address)| {
            let range = module.code()?.function(address)?;
            Some((module.id, range))
        });
        let known = function.into_iter().flat_map(|(id, range)| {
            let inside = (id, range.start)..(id, range.end);
            self.numbers.range(inside).map(|(_, site)| *site)
        });
        known.chain([site])
    }

    /// The row of a site.
    pub(crate) fn row(&self, site: SiteId) -> Option<&Site> {
        self.rows.get(site.index())
    }

    /// Notes why a site cannot be patched; the first reason stays.
    pub(crate) fn refuse(&mut self, site: SiteId, reason: String) {
        if let Some(row) = self.rows.get_mut(site.index())
            && row.refused.is_none()
        {
            row.refused = Some(reason);
            self.changed.push(site);
        }
    }

    /// True if the attribution of a sampled instruction is known.
    pub(crate) fn are_known(&self, sampled: FrameId) -> bool {
        self.waits.contains_key(&sampled)
    }

    /// What a sampled instruction waited for, most likely first.
    pub(crate) fn waits(
        &mut self,
        sampled: FrameId,
        module: &Arc<CodeModule>,
        address: u64,
        intern: impl FnMut(Frame) -> FrameId,
    ) -> Arc<[Waited]> {
        let study = || {
            let waits = module.code()?.waits(address);
            let sites = Vec::new();
            Some(Studied { waits, sites })
        };
        self.waits_by(sampled, module, address, intern, study)
    }

    /// The same where `study` decodes the code.
    pub(crate) fn waits_by(
        &mut self,
        sampled: FrameId,
        module: &Arc<CodeModule>,
        address: u64,
        mut intern: impl FnMut(Frame) -> FrameId,
        study: impl FnOnce() -> Option<Studied>,
    ) -> Arc<[Waited]> {
        if let Some(known) = self.waits.get(&sampled) {
            return Arc::clone(known);
        }
        self.leaves.push((module.id, address));
        let mut studied = study().unwrap_or_default();
        let found = std::mem::take(&mut studied.waits);
        let mut waits: Vec<Waited> = found
            .iter()
            .map(|wait| Waited {
                site: wait.site.and_then(|site| {
                    self.of_known(module, site, &mut intern, || studied.take(site))
                }),
                address: wait.site.unwrap_or(0),
                share: wait.share,
                confidence: wait.confidence,
            })
            .collect();
        waits.sort_by(|a, b| b.share.total_cmp(&a.share));
        let rows = waits.iter().map(|wait| Attribution {
            frame: sampled,
            site: wait.site,
            share: wait.share,
            confidence: wait.confidence,
        });
        self.attributions.extend(rows);
        let waits: Arc<[Waited]> = waits.into();
        self.waits.insert(sampled, Arc::clone(&waits));
        waits
    }

    /// All accesses of the blocks before a sampled instruction; `None` where no block begins, or
    /// where the instruction itself shows the access that was waited for.
    pub(crate) fn before(
        &mut self,
        sampled: FrameId,
        module: &Arc<CodeModule>,
        address: u64,
        mut intern: impl FnMut(Frame) -> FrameId,
    ) -> Option<Arc<[SiteId]>> {
        if let Some(known) = self.before.get(&sampled) {
            return known.clone();
        }
        let is_attributed = self.likeliest(sampled).is_some();
        let accesses = module.code().filter(|_| !is_attributed);
        let accesses = accesses.and_then(|code| code.blocks_before(address));
        let sites = accesses.map(|accesses| {
            let sites = accesses.iter();
            sites
                .filter_map(|at| self.of(module, *at, &mut intern))
                .collect()
        });
        self.before.insert(sampled, Option::clone(&sites));
        sites
    }

    /// The stores nearest to a site in the loops around it.
    ///
    /// Samples do not show them, because the processor does not wait for its own stores. But a store takes its line away
    /// from other threads, which do wait.
    pub(crate) fn loop_stores(
        &mut self,
        site: SiteId,
        mut intern: impl FnMut(Frame) -> FrameId,
    ) -> Arc<[SiteId]> {
        if let Some(known) = self.loop_stores.get(&site) {
            return Arc::clone(known);
        }
        let place = self.place(site);
        let found = place.and_then(|(module, address)| {
            let mut stores = module.code()?.loop_stores(address);
            stores.sort_by_key(|at| at.abs_diff(address));
            stores.truncate(MAX_LOOP_STORES);
            Some((Arc::clone(module), stores))
        });
        let sites = found.into_iter().flat_map(|(module, stores)| {
            let site = |at| self.of(&module, at, &mut intern);
            stores.into_iter().filter_map(site).collect::<Vec<_>>()
        });
        let sites: Arc<[SiteId]> = sites.collect();
        self.loop_stores.insert(site, Arc::clone(&sites));
        sites
    }

    /// Module and address of all sites and all sampled instructions.
    pub(crate) fn sampled(&self) -> impl Iterator<Item = (ModuleId, u64)> + '_ {
        let sites = self
            .places
            .iter()
            .map(|(module, address)| (module.id, *address));
        sites.chain(self.leaves.iter().copied())
    }

    /// What a sampled instruction most likely waited for, if that is known.
    pub(crate) fn likeliest(&self, sampled: FrameId) -> Option<SiteId> {
        self.waits.get(&sampled)?.first()?.site
    }

    /// The rows that are new since the last call, and the first one's number.
    pub(crate) fn take_new(&mut self) -> (SiteId, Vec<Site>) {
        let first = SiteId(u32::try_from(self.taken).unwrap_or(u32::MAX));
        let new = self.rows[self.taken..].to_vec();
        self.taken = self.rows.len();
        (first, new)
    }

    /// Rows that changed after [`Self::take_new`] returned them.
    pub(crate) fn take_changed(&mut self) -> Vec<(SiteId, Site)> {
        let mut changed = std::mem::take(&mut self.changed);
        let later: Vec<SiteId> = changed
            .extract_if(.., |it| it.index() >= self.taken)
            .collect();
        drop(later);
        changed
            .into_iter()
            .filter_map(|site| Some((site, self.row(site)?.clone())))
            .collect()
    }

    /// Attributions that are new since the last call.
    pub(crate) fn take_attributions(&mut self) -> Vec<Attribution> {
        std::mem::take(&mut self.attributions)
    }
}

/// The address that the likeliest of `waits` accessed, computed from the registers at the sampled
/// instruction.
pub(crate) fn effective(
    waits: &[Waited],
    module: &CodeModule,
    sampled: u64,
    bias: u64,
    registers: &Registers,
) -> Option<Effective> {
    let wait = waits.first().filter(|wait| wait.site.is_some())?;
    let bases = Bases {
        bias,
        ..Bases::default()
    };
    module
        .code()?
        .effective_address(wait.address, sampled, registers.x86_64(), bases)
}

fn row(frame: FrameId, info: SiteInfo) -> Site {
    Site {
        frame,
        kind: match info.kind {
            SiteKind::Load => membound_run::SiteKind::Load,
            SiteKind::Store => membound_run::SiteKind::Store,
            SiteKind::Both => membound_run::SiteKind::Both,
            SiteKind::Locked => membound_run::SiteKind::Locked,
            SiteKind::Prefetch => membound_run::SiteKind::Prefetch,
        },
        bytes: info.bytes,
        text: info.text,
        refused: None,
    }
}
