//! The files that a run was made from: read again, held to be the same, and asked where patches
//! can stand.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use membound_rewrite::image::{Identity, Image};
use membound_rewrite::patch::{Accesses, Body, Groundwork, Sites, Yield};
use membound_run::{Module, ModuleKind, RunData};
use membound_types::HarvestPlan;

use crate::Error;
use crate::yields::groundwork_options;

/// Reads files. Whoever makes a plan decides what may be read.
pub trait Binaries {
    /// All bytes of the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
}

/// The identity of the executable file that holds `bytes`, as plans name it: `build-id:…` or `sha256:…` in
/// hexadecimal; `None` where it is no executable that plans can be for.
#[must_use]
pub fn identify(bytes: &[u8]) -> Option<String> {
    Image::identify(bytes).ok().as_ref().map(identity_text)
}

/// An image, written as plans and messages name it.
pub(crate) fn identity(image: &Image<'_>) -> String {
    identity_text(image.identity())
}

fn identity_text(identity: &Identity) -> String {
    let (kind, bytes): (_, &[u8]) = match identity {
        Identity::BuildId(bytes) => ("build-id", bytes),
        Identity::TextHash(bytes) => ("sha256", bytes),
    };
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}:{digits}")
}

/// What a run says that a module was; `None` where it does not.
fn recorded(module: &Module) -> Option<String> {
    let build_id = module.build_id.as_ref().map(|id| format!("build-id:{id}"));
    build_id.or_else(|| module.text_hash.as_ref().map(|id| format!("sha256:{id}")))
}

/// By position in [`RunData::modules`]: the bytes of the files among them that are `wanted`, or
/// why there are none.
pub(crate) fn read(
    run: &RunData,
    binaries: &dyn Binaries,
    wanted: &BTreeSet<usize>,
) -> Vec<Result<Vec<u8>, String>> {
    let modules = run.modules.iter().enumerate();
    modules
        .map(|(index, module)| match module.kind {
            ModuleKind::File if wanted.contains(&index) => binaries
                .read(&module.path)
                .map_err(|error| format!("it cannot be read any more: {error}")),
            ModuleKind::File => Err("nothing was seen in it".to_owned()),
            ModuleKind::Jit | ModuleKind::Vdso | ModuleKind::Agent | ModuleKind::Kernel => {
                Err("its code is in no file".to_owned())
            }
        })
        .collect()
}

/// The image of a module of `run`; or why there is none that is looked at.
///
/// # Errors
/// When the file is not the one that was profiled.
pub(crate) fn image<'a>(
    run: &RunData,
    module: &Module,
    bytes: &'a [u8],
) -> Result<Result<Image<'a>, String>, Error> {
    let image = match Image::parse(bytes) {
        Ok(image) => image,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let now = identity(&image);
    match recorded(module) {
        Some(then) if then != now => Err(Error::Changed {
            path: module.path.clone(),
            then,
            now,
            command: command(&run.meta.command),
        }),
        _ => Ok(Ok(image)),
    }
}

/// A command as a shell would take it.
fn command(words: &[String]) -> String {
    if words.is_empty() {
        return "COMMAND".to_owned();
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=+:,@%".contains(c);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ").replace('\n', " ")
}

/// Holds the file at `path`, with these `bytes`, to what a plan was made for.
///
/// # Errors
/// When it is another than was profiled, or one that the plan says nothing of, or no binary.
pub fn check(plan: &HarvestPlan, path: &str, bytes: &[u8]) -> Result<(), Error> {
    let image = Image::parse(bytes).map_err(|error| Error::Image {
        path: path.to_owned(),
        error,
    })?;
    let now = identity(&image);
    if plan.modules.iter().any(|module| module.identity == now) {
        return Ok(());
    }
    let mut paths = plan.modules.iter().map(|module| module.path.as_str());
    match plan.modules.iter().find(|module| module.path == path) {
        Some(module) => Err(Error::Changed {
            path: path.to_owned(),
            then: module.identity.clone(),
            now,
            command: command(&plan.command),
        }),
        None => Err(Error::Unplanned {
            path: path.to_owned(),
            now,
            known: match paths.by_ref().collect::<Vec<_>>()[..] {
                [] => "no file".to_owned(),
                ref paths => paths.join(", "),
            },
        }),
    }
}

/// Where patches can stand in an image.
pub(crate) struct Patches<'a> {
    image: &'a Image<'a>,
    groundwork: Groundwork,
}

impl<'a> Patches<'a> {
    pub(crate) fn of(image: &'a Image<'a>) -> Self {
        Self {
            image,
            groundwork: Groundwork::of(image, &groundwork_options()),
        }
    }

    /// Why no yield can stand at which of these loads.
    pub(crate) fn loads(&self, addresses: Vec<u64>) -> BTreeMap<u64, String> {
        let mut options = groundwork_options();
        options.accesses = Accesses::Loads;
        let known: BTreeSet<u64> = addresses.iter().copied().collect();
        options.sites = Sites::At(addresses);
        let plan = self.groundwork.plan(self.image, &options);
        let mut refused: BTreeMap<u64, String> = known
            .into_iter()
            .map(|address| (address, "no such instruction".to_owned()))
            .collect();
        for site in plan.sites() {
            match site.number {
                Ok(_) => refused.remove(&site.address),
                Err(refusal) => refused.insert(site.address, refusal.to_string()),
            };
        }
        refused
    }

    /// At which of these instructions a yield without a prefetch can stand, all at once.
    pub(crate) fn instructions(&self, addresses: Vec<u64>) -> BTreeSet<u64> {
        let mut options = groundwork_options();
        // It stands where every yield can, and is short: that of each instruction of a file would
        // take more tables than a plan can have.
        options.body = Body::Yield(Yield::Base);
        options.sites = Sites::Instructions(addresses);
        let plan = self.groundwork.plan(self.image, &options);
        plan.sites()
            .filter(|site| site.number.is_ok())
            .map(|site| site.address)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plan_for;

    #[test]
    fn a_plan_holds_for_the_file_that_was_profiled_alone() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let known = identity(&Image::parse(&bytes).unwrap());
        let plan = plan_for("/bin/store", known.clone());
        check(&plan, "/bin/store", &bytes).unwrap();
        // Where it lies does not matter.
        check(&plan, "/opt/store", &bytes).unwrap();
        let changed = plan_for("/bin/store", "build-id:00".to_owned());
        assert_eq!(
            check(&changed, "/bin/store", &bytes)
                .unwrap_err()
                .to_string(),
            format!(
                "/bin/store is not the file that was profiled (then build-id:00, now {known}): \
                 profile it again with `membound profile -- ./store 'a b'` and plan anew"
            )
        );
        let error = check(&changed, "/bin/other", &bytes)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            format!("the plan is not for /bin/other ({known}): it is for /bin/store")
        );
        let error = check(&plan, "/bin/sh", b"#!").unwrap_err().to_string();
        assert_eq!(error, "/bin/sh: not an ELF file");
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(command(&words(&["./chase", "-n", "4"])), "./chase -n 4");
        assert_eq!(command(&words(&["a b", "it's", ""])), r"'a b' 'it'\''s' ''");
        assert_eq!(command(&[]), "COMMAND");
    }
}
