//! Reads files with values, and chooses among their values.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, bail};
use membound_input::{Content, Curve, curves_of_profile};
use membound_model::hierarchy::{Known, tlb_terms};
use membound_types::{FitData, MachineProfile, Model, ModelSource, Observation};

/// Maximum size of a file; a profile of a large machine has a few tens of megabytes.
const MAX_BYTES: u64 = 1 << 30;

/// A file that was read.
pub(super) struct Loaded {
    name: String,
    content: Content,
    /// Curves made from the points of a profile; the curves of other files are in `content`.
    curves: Vec<Curve>,
}

/// Which of several curves is chosen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice<'a> {
    /// Windows or loads; by default windows if there are any.
    pub(super) data: Option<FitData>,
    /// Text in the description of the chosen series.
    pub(super) series: Option<&'a str>,
}

/// Values to fit, and other knowledge of the machine that they come from.
pub(super) struct Data {
    pub(super) data: FitData,
    pub(super) observations: Vec<Observation>,
    pub(super) known: Known,
    pub(super) source: ModelSource,
    pub(super) notes: Vec<String>,
}

impl Loaded {
    /// Reads a file, or stdin for `-`.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let (name, mut bytes) = (path.display().to_string(), Vec::new());
        let read = if path == Path::new("-") {
            io::stdin().lock().take(MAX_BYTES).read_to_end(&mut bytes)
        } else {
            let open = File::open(path);
            open.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        };
        read.with_context(|| format!("cannot read {name}"))?;
        if bytes.len() as u64 == MAX_BYTES {
            bail!("{name}: larger than 1 GiB, which no file of measurements is");
        }
        let content = membound_input::read(&name, &bytes)?;
        let curves = match &content {
            Content::Profile(profile) => curves_of_profile(profile),
            Content::Loaded(_) => bail!(
                "{name}: latency beside traffic, which no model is fitted to (`membound compare \
                 {name} FILE` takes it)"
            ),
            Content::Curves(_) | Content::Model(_) => Vec::new(),
        };
        Ok(Self {
            name,
            content,
            curves,
        })
    }

    /// The fitted model of the file, if it holds one.
    pub(super) fn model(&self) -> Option<&Model> {
        match &self.content {
            Content::Model(model) => Some(model),
            Content::Curves(_) | Content::Loaded(_) | Content::Profile(_) => None,
        }
    }

    /// The machine profile of the file, if it holds one.
    pub(super) fn profile(&self) -> Option<&MachineProfile> {
        match &self.content {
            Content::Profile(profile) => Some(profile),
            Content::Curves(_) | Content::Loaded(_) | Content::Model(_) => None,
        }
    }

    /// Whether it holds values of this kind.
    pub(super) fn has(&self, data: FitData) -> bool {
        self.curves().iter().any(|curve| curve.data == data)
    }

    fn curves(&self) -> &[Curve] {
        match &self.content {
            Content::Curves(curves) => curves,
            Content::Loaded(_) | Content::Profile(_) | Content::Model(_) => &self.curves,
        }
    }
}

/// Chooses the values of all files, one series from each.
pub(super) fn choose(files: &[Loaded], choice: Choice<'_>) -> anyhow::Result<Data> {
    let windows = files.iter().any(|file| file.has(FitData::Window));
    let data = choice.data.unwrap_or(if windows {
        FitData::Window
    } else {
        FitData::Latency
    });
    let mut chosen = Data {
        data,
        observations: Vec::new(),
        known: Known::default(),
        source: ModelSource::default(),
        notes: Vec::new(),
    };
    for file in files {
        let name = &file.name;
        if file.model().is_some() {
            bail!("{name}: a fitted model, not values to fit (see `membound model predict`)");
        }
        let of_data = file.curves().iter().filter(|curve| curve.data == data);
        let mut curves: Vec<&Curve> = of_data.collect();
        if curves.is_empty() {
            bail!("{name}: holds no {data} values");
        }
        let all: Vec<&str> = curves.iter().map(|curve| curve.series.as_str()).collect();
        if let Some(text) = choice.series {
            curves.retain(|curve| curve.series.contains(text));
        }
        // The longest series, of equally long ones the first: documents begin with the plainest measurement.
        let longest = curves
            .into_iter()
            .rev()
            .max_by_key(|curve| curve.observations.len());
        let Some(curve) = longest else {
            bail!(
                "{name}: no series with `{}`; {}",
                choice.series.unwrap_or_default(),
                there_are(&all)
            );
        };
        if all.len() > 1 && choice.series.is_none() {
            chosen.notes.push(format!(
                "{name} holds {} series; this is `{}`, `--series TEXT` names another",
                all.len(),
                curve.series
            ));
        }
        let notes = curve.notes.iter().map(|note| format!("{name}: {note}"));
        chosen.notes.extend(notes);
        if !curve.caches.is_empty() {
            chosen.known.caches.clone_from(&curve.caches);
        }
        if let Some(profile) = file.profile() {
            chosen.known.levels.clone_from(&profile.levels);
            chosen.known.caches.clone_from(&profile.machine.caches);
            if let (Some(tlb), Some(page)) = (profile.tlb.known(), curve.page) {
                chosen.known.tlb = tlb_terms(tlb, page);
            }
            chosen.source.host = Some(profile.machine.host.clone());
        }
        if chosen.source.series.is_empty() {
            chosen.source.series.clone_from(&curve.series);
        }
        chosen.source.files.push(name.clone());
        chosen.observations.extend(&curve.observations);
    }
    Ok(chosen)
}

/// Lists the series of a file by their descriptions, which may be empty.
fn there_are(series: &[&str]) -> String {
    if let [only] = series
        && only.is_empty()
    {
        return "the file holds one series, which has no name: leave --series out".to_owned();
    }
    let names: Vec<&str> = series
        .iter()
        .map(|name| match *name {
            "" => "one without a name",
            name => name,
        })
        .collect();
    format!("there are: {}", names.join("; "))
}
