//! Names of enum values, which are the same in documents, on the command line and in messages.

/// Defines an enum whose values have names, written in place of discriminants.
///
/// serde, whose traits the enum derives, writes and reads the name, `name()` and `Display` return it, and
/// `FromStr` parses it; `ALL` lists all values in the order of declaration. Readable titles are left to the
/// crate that displays them.
#[macro_export]
macro_rules! named {
    (
        $(#[$of_enum:meta])*
        pub enum $Enum:ident {
            $($(#[$of_value:meta])* $Value:ident = $name:literal,)+
        }
    ) => {
        $(#[$of_enum])*
        pub enum $Enum {
            $($(#[$of_value])* #[serde(rename = $name)] $Value,)+
        }

        impl $Enum {
            /// All values, in the order of declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Value),+];

            /// The name used on the command line and in documents.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $name,)+
                }
            }
        }

        impl std::fmt::Display for $Enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $Enum {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL
                    .into_iter()
                    .find(|value| value.name() == text)
                    .ok_or_else(|| {
                        let names = [$($name),+].join(", ");
                        format!("`{text}` is not one of {names}")
                    })
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};
    use std::str::FromStr;

    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use crate::{
        Access, AccessKind, AccessSampler, BandwidthKernel, Basis, CacheKind, CapabilityState,
        DistanceRule, Fence, Filler, GapReason, HarvestRole, IdlePolicy, Kind, LatencySource,
        LevelKind, MlpMode, NamedPolicy, Operation, PageKind, PatchBody, Pattern, PlanSource,
        ScavengerState, ServedBy, SiteState, SlotMode, SmtPolicy, Snoop, Stopped, ThpState,
        Translation, VectorWidth, WindowKernel, YieldKind, YieldReason,
    };

    fn check<T>(all: &[T], name: fn(T) -> &'static str)
    where
        T: Copy + Debug + PartialEq + Display + FromStr<Err = String> + Serialize,
        T: DeserializeOwned,
    {
        for &value in all {
            let name = name(value);
            assert_eq!(serde_json::to_value(value).unwrap(), name);
            assert_eq!(serde_json::from_value::<T>(name.into()).unwrap(), value);
            assert_eq!(value.to_string(), name);
            assert_eq!(name.parse(), Ok(value));
        }
        let names: Vec<&str> = all.iter().map(|&value| name(value)).collect();
        assert_eq!(
            "".parse::<T>(),
            Err(format!("`` is not one of {}", names.join(", ")))
        );
    }

    #[test]
    fn every_value_has_the_name_that_serde_writes_and_reads() {
        check(&Access::ALL, Access::name);
        check(&AccessKind::ALL, AccessKind::name);
        check(&AccessSampler::ALL, AccessSampler::name);
        check(&BandwidthKernel::ALL, BandwidthKernel::name);
        check(&Basis::ALL, Basis::name);
        check(&CacheKind::ALL, CacheKind::name);
        check(&CapabilityState::ALL, CapabilityState::name);
        check(&DistanceRule::ALL, DistanceRule::name);
        check(&Fence::ALL, Fence::name);
        check(&Filler::ALL, Filler::name);
        check(&GapReason::ALL, GapReason::name);
        check(&HarvestRole::ALL, HarvestRole::name);
        check(&IdlePolicy::ALL, IdlePolicy::name);
        check(&Kind::ALL, Kind::name);
        check(&LatencySource::ALL, LatencySource::name);
        check(&LevelKind::ALL, LevelKind::name);
        check(&MlpMode::ALL, MlpMode::name);
        check(&NamedPolicy::ALL, NamedPolicy::name);
        check(&Operation::ALL, Operation::name);
        check(&PageKind::ALL, PageKind::name);
        check(&PatchBody::ALL, PatchBody::name);
        check(&Pattern::ALL, Pattern::name);
        check(&PlanSource::ALL, PlanSource::name);
        check(&ScavengerState::ALL, ScavengerState::name);
        check(&ServedBy::ALL, ServedBy::name);
        check(&SiteState::ALL, SiteState::name);
        check(&SlotMode::ALL, SlotMode::name);
        check(&SmtPolicy::ALL, SmtPolicy::name);
        check(&Snoop::ALL, Snoop::name);
        check(&Stopped::ALL, Stopped::name);
        check(&ThpState::ALL, ThpState::name);
        check(&Translation::ALL, Translation::name);
        check(&VectorWidth::ALL, VectorWidth::name);
        check(&WindowKernel::ALL, WindowKernel::name);
        check(&YieldKind::ALL, YieldKind::name);
        check(&YieldReason::ALL, YieldReason::name);
    }

    #[test]
    fn names_are_those_of_the_contract() {
        assert_eq!(
            "zigzag".parse::<Pattern>().unwrap_err(),
            "`zigzag` is not one of random, stride, page-random, indexed"
        );
        assert_eq!(BandwidthKernel::NtWrite.name(), "nt-write");
        assert_eq!(format!("[{:>5}]", PageKind::Huge2M), "[   2m]");
    }
}
