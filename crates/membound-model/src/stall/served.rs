//! The places that serve accesses.

/// Where an access was served, as reports group it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Served {
    /// The innermost cache.
    L1,
    /// The second cache.
    L2,
    /// Caches beyond the second.
    L3,
    /// Memory of the own node.
    Dram,
    /// Memory of another node, or another core's cache.
    Remote,
    /// Not known.
    Unknown,
}

impl Served {
    /// All values, by distance.
    pub const ALL: [Self; 6] = [
        Self::L1,
        Self::L2,
        Self::L3,
        Self::Dram,
        Self::Remote,
        Self::Unknown,
    ];

    /// The place of the level that profiles and calibrations call `name`.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name {
            "L1" => Self::L1,
            "L2" => Self::L2,
            "core" => Self::Remote,
            _ if name.starts_with("DRAM") => Self::Dram,
            _ if name.starts_with("node ") => Self::Remote,
            _ if name.starts_with('L') => Self::L3,
            _ => Self::Unknown,
        }
    }
}

/// An amount for each place, in any unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByLevel([f64; Served::ALL.len()]);

impl ByLevel {
    /// The amount of `served`.
    #[must_use]
    pub const fn get(&self, served: Served) -> f64 {
        self.0[served as usize]
    }

    /// Adds `amount` to that of `served`.
    pub const fn add(&mut self, served: Served, amount: f64) {
        self.0[served as usize] += amount;
    }

    /// Sets the amount of `served` to 0, and returns what it was.
    pub const fn take(&mut self, served: Served) -> f64 {
        std::mem::replace(&mut self.0[served as usize], 0.0)
    }

    /// Sum of all amounts.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// All amounts times `factor`.
    #[must_use]
    pub fn times(mut self, factor: f64) -> Self {
        for amount in &mut self.0 {
            *amount *= factor;
        }
        self
    }

    /// The amounts scaled so that their sum is `total`. If all are 0, `total` becomes unknown.
    #[must_use]
    pub fn scaled_to(self, total: f64) -> Self {
        let sum = self.total();
        if sum > 0.0 {
            return self.times(total / sum);
        }
        let mut unknown = Self::default();
        unknown.add(Served::Unknown, total);
        unknown
    }
}

impl std::ops::AddAssign for ByLevel {
    fn add_assign(&mut self, other: Self) {
        for (amount, more) in self.0.iter_mut().zip(other.0) {
            *amount += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_profiles_have_their_place() {
        for (name, served) in [
            ("L1", Served::L1),
            ("L2", Served::L2),
            ("L3", Served::L3),
            ("L4", Served::L3),
            ("DRAM", Served::Dram),
            ("DRAM 4k", Served::Dram),
            ("core", Served::Remote),
            ("node 1", Served::Remote),
            ("", Served::Unknown),
        ] {
            assert_eq!(Served::of(name), served, "{name}");
        }
    }

    #[test]
    fn scaling_keeps_proportions_and_invents_no_level() {
        let mut some = ByLevel::default();
        some.add(Served::L3, 1.0);
        some.add(Served::Dram, 3.0);
        let scaled = some.scaled_to(8.0);
        assert_eq!(scaled.get(Served::Dram), 6.0);
        assert_eq!(scaled.total(), 8.0);
        let unknown = ByLevel::default().scaled_to(2.0);
        assert_eq!(unknown.get(Served::Unknown), 2.0);
    }
}
