//! Memory that is served from one level, and its text form for command lines.

use std::fmt;
use std::str::FromStr;

use membound_types::{CpuId, NodePolicy, PageKind};

/// Bytes from one element of a chain to the next in memory: a line; for lines that another core
/// modifies, a page and a line, because prefetchers that stay inside pages would fetch such lines
/// before they are loaded.
pub(super) const LINE_BYTES: u64 = 64;
pub(super) const MODIFIED_STRIDE_BYTES: u64 = 4096 + LINE_BYTES;

/// Memory whose loads are served from one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Name of the level, without colons.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Page kind of the memory.
    pub page: PageKind,
    /// NUMA policy of the memory.
    pub node: NodePolicy,
    /// CPU whose caches hold its lines modified whenever they are loaded.
    pub modified_on: Option<CpuId>,
}

impl fmt::Display for Area {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            bytes,
            page,
            node,
            modified_on,
        } = self;
        write!(out, "{name}:{bytes}:{page}:{node}")?;
        match modified_on {
            Some(cpu) => write!(out, ":{cpu}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Area {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = text.split(':');
        let mut next = |what: &str| fields.next().ok_or(format!("{text}: no {what}"));
        let name = next("name")?.to_owned();
        let bytes = next("size")?
            .parse()
            .map_err(|_| format!("{text}: no size"))?;
        let page = next("page kind")?.parse()?;
        let node = next("node")?.parse()?;
        let modified_on = fields
            .next()
            .map(|cpu| {
                cpu.parse()
                    .map(CpuId)
                    .map_err(|_| format!("{text}: no CPU"))
            })
            .transpose()?;
        Ok(Self {
            name,
            bytes,
            page,
            node,
            modified_on,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::NodeId;

    #[test]
    fn areas_survive_a_command_line() {
        let mut area = Area {
            name: "node 1".to_owned(),
            bytes: 1 << 27,
            page: PageKind::Thp,
            node: NodePolicy::Node(NodeId(1)),
            modified_on: None,
        };
        assert_eq!(area.to_string().parse(), Ok(area.clone()));
        area.modified_on = Some(CpuId(3));
        assert_eq!(area.to_string().parse(), Ok(area));
        for wrong in [
            "",
            "L1",
            "L1:x:4k:local",
            "L1:1:4x:local",
            "L1:1:4k:local:x",
        ] {
            assert!(wrong.parse::<Area>().is_err(), "{wrong}");
        }
    }
}
