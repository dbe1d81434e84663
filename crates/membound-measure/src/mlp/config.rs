//! What `measure mlp` measures, and which values it refuses.

use membound_types::{Fence, Filler, NodePolicy, PageKind};

use crate::{Effort, Error};

/// What to measure.
#[derive(Clone, Debug)]
pub struct MlpConfig {
    /// Loads of the parallel cells (N).
    pub loads: Vec<u32>,
    /// Fillers of the parallel cells (K); `None` for a coarse grid around the window that
    /// was found.
    pub fillers: Option<Vec<u32>>,
    /// Filler of the cells; `None` for the one that shows the reorder buffer. Windows are
    /// searched with every kind.
    pub filler: Option<Filler>,
    /// Fence of the kernel; `None` for this processor's default.
    pub fence: Option<Fence>,
    /// Page kinds; the first is the main one.
    pub pages: Vec<PageKind>,
    /// Node policies; the first is the main one.
    pub nodes: Vec<NodePolicy>,
    /// Bytes of the area; it shrinks to what memory allows.
    pub area_bytes: u64,
    /// Maximum number of loads in the area sweep; 0 for no sweep.
    pub sweep_loads: u32,
    /// How often the times of a few loads are measured again, each time on new pages.
    pub placements: u32,
    /// Numbers of chains in the throughput series.
    pub chains: Vec<u32>,
    /// Executions per batch.
    pub executions: u64,
    /// Batches per variant.
    pub batches: u32,
}

impl MlpConfig {
    /// The document's experiment with `page` pages, as fine as `effort` allows.
    #[must_use]
    pub fn new(effort: Effort, page: PageKind) -> Self {
        let loads: &[u32] = effort.pick(
            &[
                1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128,
            ][..],
            &[
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 28, 32, 36,
                40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192,
            ][..],
            &[
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26,
                28, 30, 32, 36, 40, 44, 48, 52, 56, 60, 64, 72, 80, 88, 96, 104, 112, 120, 128,
                144, 160, 176, 192, 224, 256,
            ][..],
        );
        Self {
            loads: loads.to_vec(),
            fillers: None,
            filler: None,
            fence: None,
            pages: vec![page],
            nodes: vec![NodePolicy::LOCAL],
            area_bytes: effort.pick(512 << 20, 1 << 30, 1 << 30),
            sweep_loads: 11,
            placements: 0,
            chains: vec![
                1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128,
            ],
            executions: effort.pick(32, 48, 64),
            batches: effort.pick(4, 6, 12),
        }
    }

    /// Checks that the values are usable.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the value.
    pub fn check(&self) -> Result<(), Error> {
        const MAX_LOADS: u32 = 1024;
        const MAX_FILLERS: u32 = 8192;
        if let Some(loads) = self
            .loads
            .iter()
            .find(|loads| !(1..=MAX_LOADS).contains(*loads))
        {
            return Err(Error::Invalid(format!(
                "{loads} loads: use 1 to {MAX_LOADS}"
            )));
        }
        if let Some(fillers) = self
            .fillers
            .iter()
            .flatten()
            .find(|fillers| **fillers > MAX_FILLERS)
        {
            return Err(Error::Invalid(format!(
                "{fillers} fillers: use 0 to {MAX_FILLERS}"
            )));
        }
        if self.area_bytes < 1 << 20 {
            return Err(Error::Invalid(format!(
                "an area of {} bytes fits caches: use 1 MiB or more",
                self.area_bytes
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_make_no_sense_are_named() {
        let mut config = MlpConfig::new(Effort::Quick, PageKind::Base);
        config.loads = vec![0];
        assert!(config.check().unwrap_err().to_string().contains("0 loads"));
        config.loads = vec![1];
        config.fillers = Some(vec![100_000]);
        assert!(
            config
                .check()
                .unwrap_err()
                .to_string()
                .contains("100000 fillers")
        );
        config.fillers = None;
        config.area_bytes = 4096;
        assert!(
            config
                .check()
                .unwrap_err()
                .to_string()
                .contains("4096 bytes")
        );
    }
}
