//! The files of a run: reads them again and checks that they are the same.

use std::collections::BTreeSet;
use std::io;

use membound_rewrite::image::{Identity, Image};
use membound_run::{Module, ModuleId, ModuleKind, RunData};
use membound_types::HarvestPlan;

use crate::Error;

/// Reads files. The caller that makes a plan decides which files may be read.
pub trait Binaries {
    /// Returns all bytes of the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
}

/// The identity of the executable file that holds `bytes`, in the form of plans: `build-id:…` or `sha256:…`
/// in hexadecimal; `None` if plans cannot be made for the file.
#[must_use]
pub fn identify(bytes: &[u8]) -> Option<String> {
    Image::identify(bytes).ok().as_ref().map(identity_text)
}

/// The identity of an image, in the form of plans and messages.
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

/// The identity of a module that the run recorded, if it did.
fn recorded(module: &Module) -> Option<String> {
    let build_id = module.build_id.as_ref().map(|id| format!("build-id:{id}"));
    build_id.or_else(|| module.text_hash.as_ref().map(|id| format!("sha256:{id}")))
}

/// For each position in [`RunData::modules`], the bytes of the file if anything was seen in it, or why there are none.
pub(crate) fn read(run: &RunData, binaries: &dyn Binaries) -> Vec<Result<Vec<u8>, String>> {
    let needed = needed_modules(run);
    let modules = run.modules.iter().enumerate();
    modules
        .map(|(index, module)| match module.kind {
            ModuleKind::File if needed.contains(&index) => binaries
                .read(&module.path)
                .map_err(|error| format!("it cannot be read any more: {error}")),
            ModuleKind::File => Err("nothing was seen in it".to_owned()),
            ModuleKind::Jit | ModuleKind::Vdso | ModuleKind::Agent | ModuleKind::Kernel => {
                Err("its code is in no file".to_owned())
            }
        })
        .collect()
}

/// Positions of the modules with samples, sites or counted blocks.
fn needed_modules(run: &RunData) -> BTreeSet<usize> {
    let sampled = run
        .samples
        .iter()
        .map(|sample| run.stacks[sample.stack.index()].frame);
    let frames: BTreeSet<_> = sampled
        .chain(run.sites.iter().map(|site| site.frame))
        .chain(run.blocks.iter().map(|block| block.frame))
        .collect();
    frames
        .into_iter()
        .filter_map(|frame| run.frames[frame.index()].module)
        .map(ModuleId::index)
        .collect()
}

/// The images of the modules of `run`, whose bytes are `files`, or why a module has none.
///
/// # Errors
/// If a file is not the one that was profiled.
pub(crate) fn images<'a>(
    run: &RunData,
    files: &'a [Result<Vec<u8>, String>],
) -> Result<Vec<Result<Image<'a>, String>>, Error> {
    let modules = run.modules.iter().zip(files);
    modules
        .map(|(module, bytes)| match bytes {
            Ok(bytes) => image(run, module, bytes),
            Err(reason) => Ok(Err(reason.clone())),
        })
        .collect()
}

/// The image of a module of `run`, or why it has none.
///
/// # Errors
/// If the file is not the one that was profiled.
fn image<'a>(
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

/// A command, quoted for a shell.
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

/// Checks that the file at `path`, with these `bytes`, is one that the plan was made for.
///
/// # Errors
/// If it has changed since it was profiled, if the plan is not for it, or if it is no binary.
pub fn check(plan: &HarvestPlan, path: &str, bytes: &[u8]) -> Result<(), Error> {
    let identity = Image::identify(bytes).map_err(|error| Error::Image {
        path: path.to_owned(),
        error,
    })?;
    let now = identity_text(&identity);
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
        // The path does not matter.
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
