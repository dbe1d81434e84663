//! Simulated cores, whose structures are known, hold the search to the published sizes.

use super::*;
use Filler::{Branch, Dependent, Flags, Integer, Load, Mask, Move, Nop, Store, Vector, X87, Zero};

/// A core: how much of each resource it has beyond the architecture's own.
struct Core {
    rob: u32,
    integer: u32,
    /// `None`: flags lie in the integer registers' file.
    flags: Option<u32>,
    vector: u32,
    mask: u32,
    branches: u32,
    loads: u32,
    stores: u32,
    scheduler: u32,
    /// Whether copies and zeroing need no register.
    eliminates: bool,
    /// Whether `next` joins the entry that holds `entry`.
    joins: fn(entry: &[Filler], next: Filler) -> bool,
}

/// A test and the branch behind it are one operation, as on every core of this century.
fn a_branch_joins_a_test(entry: &[Filler], next: Filler) -> bool {
    entry == [Flags] && next == Branch
}

/// As measured on Zen 4: four nops, two zeroings, two tests, and an address computation or a
/// copy with an x87 operation or a branch.
fn zen4(entry: &[Filler], next: Filler) -> bool {
    let plain = |filler: Filler| matches!(filler, Integer | Move);
    let other = |filler: Filler| matches!(filler, X87 | Branch);
    match entry {
        _ if next == Nop && entry.iter().all(|filler| *filler == Nop) => entry.len() < 4,
        [Nop, Nop] => true,
        [Nop, Nop, Nop, ..] => false,
        [first] => {
            next == Nop
                || *first == Nop
                || (*first == Zero && next == Zero)
                || (*first == Flags && (next == Flags || next == Branch))
                || (plain(*first) && other(next))
                || (other(*first) && plain(next))
        }
        _ => false,
    }
}

const ZEN_4: Core = Core {
    rob: 320,
    integer: 202,
    flags: Some(118),
    vector: 153,
    mask: 41,
    branches: 1000,
    loads: 1000,
    stores: 64,
    scheduler: 92,
    eliminates: true,
    joins: zen4,
};

const ZEN_3: Core = Core {
    rob: 256,
    integer: 162,
    flags: Some(110),
    vector: 130,
    mask: 1,
    branches: 1000,
    loads: 116,
    stores: 64,
    scheduler: 96,
    eliminates: true,
    joins: a_branch_joins_a_test,
};

const ZEN_5: Core = Core {
    rob: 448,
    integer: 208,
    flags: Some(200),
    vector: 350,
    mask: 60,
    branches: 1000,
    loads: 200,
    stores: 104,
    scheduler: 88,
    eliminates: true,
    joins: a_branch_joins_a_test,
};

const SKYLAKE_SP: Core = Core {
    rob: 224,
    integer: 150,
    flags: None,
    vector: 145,
    mask: 128,
    branches: 48,
    loads: 72,
    stores: 56,
    scheduler: 97,
    eliminates: true,
    joins: a_branch_joins_a_test,
};

/// Microcode has switched off the elimination of integer copies.
const ICE_LAKE: Core = Core {
    rob: 352,
    integer: 260,
    flags: None,
    vector: 200,
    mask: 128,
    branches: 100,
    loads: 128,
    stores: 72,
    scheduler: 97,
    eliminates: false,
    joins: a_branch_joins_a_test,
};

/// Sapphire Rapids and Emerald Rapids.
const GOLDEN_COVE: Core = Core {
    rob: 512,
    integer: 260,
    flags: None,
    vector: 300,
    mask: 136,
    branches: 128,
    loads: 192,
    stores: 112,
    scheduler: 97,
    eliminates: false,
    joins: a_branch_joins_a_test,
};

const CORES: [(&str, Core); 6] = [
    ("Zen 3", ZEN_3),
    ("Zen 4", ZEN_4),
    ("Zen 5", ZEN_5),
    ("Skylake-SP", SKYLAKE_SP),
    ("Ice Lake", ICE_LAKE),
    ("Golden Cove", GOLDEN_COVE),
];

impl Core {
    /// Instructions in the window, the two loads with them, at the cliff of `pattern`.
    fn cliff(&self, pattern: &[Filler]) -> u32 {
        let mut used = [0_u32; Filler::ALL.len()];
        let mut entries = 1;
        let mut entry: Vec<Filler> = Vec::new();
        let mut fillers = 0;
        for &next in pattern.iter().cycle().take(8192) {
            if !entry.is_empty() && (self.joins)(&entry, next) {
                entry.push(next);
            } else {
                entry = vec![next];
                entries += 1;
            }
            used[next as usize] += 1;
            // The loads take an integer register and an entry of the load queue each.
            if entries + 1 > self.rob || !self.holds(&used) {
                break;
            }
            fillers += 1;
        }
        fillers + WINDOW_LOADS
    }

    fn holds(&self, used: &[u32; Filler::ALL.len()]) -> bool {
        let of = |filler: Filler| used[filler as usize];
        let copies = if self.eliminates { 0 } else { of(Move) };
        let flags = of(Flags);
        let integer = of(Integer) + of(Load) + of(Dependent) + copies + WINDOW_LOADS;
        let registers = match self.flags {
            // Two tests side by side share the flags.
            Some(own) => integer <= self.integer && flags.div_ceil(2) <= own,
            None => integer + flags <= self.integer,
        };
        registers
            && of(Vector) <= self.vector
            && of(Mask) <= self.mask
            && of(Branch) <= self.branches
            && of(Load) + WINDOW_LOADS <= self.loads
            && of(Store) <= self.stores
            && of(Dependent) <= self.scheduler
    }

    fn kinds(&self) -> Vec<Filler> {
        Filler::ALL
            .into_iter()
            .filter(|filler| *filler != Filler::Mixed && (*filler != Mask || self.mask > 1))
            .collect()
    }

    /// Every cliff that the search measures; each off by up to `percent` per cent.
    fn cliffs(&self, percent: f64, seed: u64) -> Vec<FillerCliff> {
        let mut random = crate::random::Random::new(seed);
        let kinds = self.kinds();
        let singles = kinds.iter().map(|kind| vec![*kind]);
        singles
            .chain(mixes(&kinds))
            .map(|pattern| {
                let off = (random.below(2001) as f64 / 1000.0 - 1.0) * percent / 100.0;
                let instructions = f64::from(self.cliff(&pattern)) * (1.0 + off);
                FillerCliff {
                    instructions: instructions.round() as u32,
                    pattern,
                }
            })
            .collect()
    }
}

#[test]
fn the_published_buffer_of_every_core_is_found_within_three_per_cent() {
    for (name, core) in &CORES {
        for seed in 0..20 {
            let cliffs = core.cliffs(0.5, seed);
            let found = agreement(&cliffs).unwrap_or_else(|| panic!("{name}: none agree"));
            let off = found.instructions / f64::from(core.rob) - 1.0;
            assert!(off.abs() < 0.03, "{name}: {found:?}");
            assert!(found.mix.len() > 1, "{name}: {found:?}");
        }
    }
}

#[test]
fn nops_alone_would_be_wrong_where_four_share_an_entry() {
    let cliffs = ZEN_4.cliffs(0.0, 0);
    assert_eq!(of(&cliffs, &[Nop]), Some(4 * 318 + 2));
    let found = agreement(&cliffs).unwrap();
    assert!((found.instructions - 320.0).abs() < 3.0, "{found:?}");
    assert!(
        !found.agreeing.iter().any(|cliff| cliff.pattern == [Nop]),
        "{found:?}"
    );
}

#[test]
fn a_core_on_which_only_one_resource_is_ever_met_is_not_guessed() {
    // Every filler is a test: nothing says whether the buffer or the flags ended them.
    let cliffs: Vec<FillerCliff> = [
        vec![Flags],
        vec![Flags, Flags, Integer],
        vec![Flags, Integer],
    ]
    .into_iter()
    .map(|pattern| FillerCliff {
        pattern,
        instructions: 150,
    })
    .collect();
    assert_eq!(agreement(&cliffs), None);
    assert_eq!(agreement(&[]), None);
}

#[test]
fn mixes_without_any_filler_inside_are_no_buffer_of_two_entries() {
    let cliffs: Vec<FillerCliff> = mixes(&[Nop, Branch, X87, Vector, Flags, Integer])
        .into_iter()
        .map(|pattern| FillerCliff {
            pattern,
            instructions: WINDOW_LOADS,
        })
        .collect();
    assert_eq!(agreement(&cliffs), None);
}

#[track_caller]
fn check(core: &Core, filler: Filler, expected: &str) {
    let cliffs = core.cliffs(0.3, 7);
    let reorder = agreement(&cliffs).unwrap().instructions;
    let instructions = of(&cliffs, &[filler]).unwrap();
    let ended = ended(filler, instructions, Some(reorder), &cliffs);
    assert_eq!(ended.name(filler), expected, "{filler} at {instructions}");
}

#[test]
fn each_single_filler_names_its_limiting_resource() {
    check(&ZEN_4, Nop, "reorder buffer (nop fusion: 4 share an entry)");
    check(&ZEN_4, Zero, "reorder buffer (2 share an entry)");
    check(&ZEN_4, Integer, "integer registers");
    check(&ZEN_4, Vector, "vector registers");
    check(&ZEN_4, Flags, "flag registers");
    check(&ZEN_4, Mask, "mask registers");
    check(&ZEN_4, Move, "reorder buffer");
    check(&ZEN_4, Branch, "reorder buffer");
    check(&ZEN_4, X87, "reorder buffer");
    check(&ZEN_4, Load, "integer registers");
    check(&ZEN_4, Store, "store queue");
    check(&ZEN_4, Dependent, "scheduler");
    check(&SKYLAKE_SP, Nop, "reorder buffer");
    check(&SKYLAKE_SP, Flags, "integer registers");
    check(&SKYLAKE_SP, Branch, "branches in flight");
    check(&SKYLAKE_SP, Load, "load queue");
    check(&ICE_LAKE, Move, "integer registers");
    check(&GOLDEN_COVE, Vector, "vector registers");
    check(&ZEN_5, Integer, "integer registers");
    check(&ZEN_5, Nop, "reorder buffer");
}

#[test]
fn fillers_an_entry_are_whole_numbers_where_one_is_near() {
    assert_eq!(share(3.98), 4.0);
    assert_eq!(share(0.99), 1.0);
    assert_eq!(share(1.5), 1.5);
    let name = |each| LimitingStructure::ReorderBuffer(each).name(Zero);
    assert_eq!(name(1.0), "reorder buffer");
    assert!(name(2.0).contains("2 share an entry"), "{}", name(2.0));
    assert!(!name(1.5).contains("share an entry"), "{}", name(1.5));
}
