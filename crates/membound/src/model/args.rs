//! Arguments of `model`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use membound_model::hierarchy::PageTableChoice;
use membound_types::{FitData, Weights};

use membound_input::parse_size;

/// What to do with a hierarchy model.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Fit a hierarchy model to measured windows or to a latency curve.
    Fit(FitArgs),
    /// Show a model: its components (the paper's Table 1) and attainable rates (Table 2).
    Show(ShowArgs),
    /// Predict the times of windows and loads that were not measured.
    Predict(PredictArgs),
}

/// Which values to fit, and how.
#[derive(Args, Debug, Default)]
pub(crate) struct FitOptionArgs {
    /// Topology: a bundled name (origin2000, generic) or a TOML file [default: the levels
    /// that the data show].
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) topology: Option<String>,
    /// Sizes of the levels for which the topology has none, or of all levels.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<u64>,
    /// Fix a parameter at this value, in ns, instead of fitting it. May be repeated.
    #[arg(long, value_name = "SYMBOL=VALUE", value_parser = fixed)]
    pub(crate) fix: Vec<Fixes>,
    /// Also fit the sizes of levels, starting from the given ones [default without --topology].
    #[arg(long)]
    pub(crate) free_sizes: bool,
    /// Weights of the residuals: model, measured (the paper's), equal [default: model].
    #[arg(long, value_name = "WEIGHTS")]
    pub(crate) weights: Option<Weights>,
    /// Page-table term: off, paper (from 2^28, reference 2^26) or START,REFERENCE
    /// [default: as the topology has it].
    #[arg(long, value_name = "TERM", value_parser = page_table)]
    pub(crate) page_table: Option<PageTableChoice>,
    /// Number of entries of the TLB (0: no TLB term) [default: from the topology or the profile].
    #[arg(long, value_name = "N")]
    pub(crate) tlb_entries: Option<u64>,
    /// Size of the pages of the areas [default: from the topology or the profile].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) page_size: Option<u64>,
    /// Which values to fit from a file with both: window, latency [default: window].
    #[arg(long, value_name = "DATA")]
    pub(crate) data: Option<FitData>,
    /// Which series to fit from a file with several: the one whose description contains TEXT.
    #[arg(long, value_name = "TEXT")]
    pub(crate) series: Option<String>,
}

/// Parameters and the values they are given, from one `--fix`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fixes(pub(crate) Vec<(String, f64)>);

/// How a model's results are shown on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelFormat {
    /// A summary for a person.
    #[default]
    Text,
    /// The document that `--json` writes.
    Json,
    /// One line a point as comma-separated values.
    Csv,
}

/// Arguments of `model fit`.
#[derive(Args, Debug)]
pub(crate) struct FitArgs {
    /// Machine profiles, documents of `measure window` or `measure latency`, CSV, or saved output of
    /// lat_mem_rd, multichase or Intel MLC (`-`: stdin). Several are fitted together.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) fit: FitOptionArgs,
    /// Write the model to FILE (`-`: stdout).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a self-contained HTML page to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Format of the model on stdout.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: ModelFormat,
}

/// Arguments of `model show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// A bundled topology (origin2000, generic), a topology file, a fitted model or a
    /// machine profile.
    #[arg(value_name = "NAME|FILE")]
    pub(crate) model: String,
    /// Sizes of the levels for which the topology has none, or of all levels.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<u64>,
    /// Write JSON to FILE; without FILE or with `-`, to stdout.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// Arguments of `model predict`.
#[derive(Args, Debug)]
pub(crate) struct PredictArgs {
    /// A fitted model, or anything that `model fit` reads (fitted first).
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Sizes of windows in bytes, each predicted in every area.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, requires = "areas")]
    pub(crate) windows: Vec<u64>,
    /// Sizes of the areas in bytes.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, requires = "windows")]
    pub(crate) areas: Vec<u64>,
    /// Sizes in bytes of the buffer of a random pointer chase.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, required_unless_present = "windows")]
    pub(crate) sizes: Vec<u64>,
    /// Distances between the elements of the chase in bytes [default: one line].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, requires = "sizes")]
    pub(crate) strides: Vec<u64>,
    /// Topology: a bundled name or a TOML file [default: the levels that the data show].
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) topology: Option<String>,
    /// Sizes of the topology's levels.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, requires = "topology")]
    pub(crate) level_sizes: Vec<u64>,
    /// Which series to fit from a file with several: the one whose description contains TEXT.
    #[arg(long, value_name = "TEXT")]
    pub(crate) series: Option<String>,
    /// Write the prediction to FILE (`-`: stdout).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Format of the prediction on stdout.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: ModelFormat,
}

/// Parses `t_m=468`, or several with commas between. The paper's own spelling of a symbol has a comma too
/// (`t_m,1`), so a piece without `=` belongs to the one after it.
fn fixed(text: &str) -> Result<Fixes, String> {
    let bad = || format!("`{text}` fixes nothing: use SYMBOL=VALUE, as in t_m=468");
    let mut fixes = Vec::new();
    let mut symbol = String::new();
    for piece in text.split(',') {
        let Some((name, value)) = piece.split_once('=') else {
            symbol = symbol + piece + ",";
            continue;
        };
        symbol += name;
        let value: f64 = value.trim().parse().map_err(|_| bad())?;
        if symbol.trim().is_empty() || !value.is_finite() || value < 0.0 {
            return Err(bad());
        }
        fixes.push((symbol.trim().to_owned(), value));
        symbol = String::new();
    }
    if symbol.is_empty() && !fixes.is_empty() {
        Ok(Fixes(fixes))
    } else {
        Err(bad())
    }
}

fn page_table(text: &str) -> Result<PageTableChoice, String> {
    match text {
        "off" => Ok(PageTableChoice::Off),
        "paper" => Ok(PageTableChoice::Paper),
        _ => {
            let (start, reference) = text.split_once(',').ok_or_else(|| {
                format!("`{text}` is no page-table term: use off, paper or START,REFERENCE")
            })?;
            let (start_bytes, reference_bytes) = (parse_size(start)?, parse_size(reference)?);
            if reference_bytes < 2 || start_bytes < reference_bytes {
                return Err(format!(
                    "`{text}`: the start cannot be below the reference, nor that below 2"
                ));
            }
            Ok(PageTableChoice::At {
                start_bytes,
                reference_bytes,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_values_and_page_tables_as_people_type_them() {
        let check = |text: &str, expected: &[(&str, f64)]| {
            let expected = expected
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value));
            assert_eq!(fixed(text), Ok(Fixes(expected.collect())), "{text}");
        };
        check("t_m=468", &[("t_m", 468.0)]);
        check("t_m=468,t_s0=0", &[("t_m", 468.0), ("t_s0", 0.0)]);
        check("t_m,1=468,t_s,0=0", &[("t_m,1", 468.0), ("t_s,0", 0.0)]);
        for text in [
            "t_m",
            "=4",
            "t_m=",
            "t_m=x",
            "t_m=nan",
            "t_m=-1",
            "t_m=inf",
            "",
            "t_m=1,",
            "t_m=1,t_s",
        ] {
            let error = fixed(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        assert_eq!(page_table("paper"), Ok(PageTableChoice::Paper));
        assert_eq!(
            page_table("256M,64M"),
            Ok(PageTableChoice::At {
                start_bytes: 1 << 28,
                reference_bytes: 1 << 26
            })
        );
        for text in ["on", "1G", "64M,256M", "1G,1"] {
            let error = page_table(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }
}
