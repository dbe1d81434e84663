//! Which file of a crate uses items of which other file.
//!
//! Paths are resolved as far as they lead through modules: from `crate`, `self`, `super`, modules
//! declared in the same one, and modules that a `use` has brought in. A `pub use` re-exports a
//! name: code that uses the name there imports the file that defines it, and the re-export itself
//! is no import. Neither is a `mod` alone. Code under `cfg(test)` is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Attribute, Item, ItemMod, UseTree, Visibility};

/// Each file, and the files that it imports.
pub(super) type Imports = BTreeMap<String, BTreeSet<String>>;

/// A module's names from the crate's root.
type ModulePath = Vec<String>;

/// A module: the file that contains it, its items, and the names that it re-exports with their
/// paths.
struct ModuleFile {
    file: PathBuf,
    items: Vec<Item>,
    handed_on: BTreeMap<String, Vec<String>>,
}

/// Maximum length of a chain of re-exports.
const MAX_REEXPORT_DEPTH: usize = 8;

/// Imports of the crate whose first file is `first`, by paths from `root`.
///
/// # Errors
/// When a file cannot be read or parsed.
pub(super) fn of_crate(root: &Path, first: &Path) -> Result<Imports> {
    let mut modules = BTreeMap::new();
    let directory = first.parent().unwrap_or(root).to_owned();
    load(&mut modules, Vec::new(), first, &directory)?;
    let shown = |file: &Path| {
        let inside = file.strip_prefix(root).unwrap_or(file);
        inside.display().to_string()
    };
    let mut imports = Imports::new();
    for (path, module) in &modules {
        let own = imports.entry(shown(&module.file)).or_default();
        for named in Scope::of(&modules, path).named {
            let other = &modules[&named].file;
            if *other != module.file {
                own.insert(shown(other));
            }
        }
    }
    Ok(imports)
}

/// Reads the module at `path` from `file`, and those below it, whose files lie in `directory`.
fn load(
    modules: &mut BTreeMap<ModulePath, ModuleFile>,
    path: ModulePath,
    file: &Path,
    directory: &Path,
) -> Result<()> {
    let place = || file.display().to_string();
    let source = std::fs::read_to_string(file).with_context(place)?;
    let items = syn::parse_file(&source).with_context(place)?.items;
    add(modules, path, file, directory, items)
}

/// Adds a module of these items, and those below it.
fn add(
    modules: &mut BTreeMap<ModulePath, ModuleFile>,
    path: ModulePath,
    file: &Path,
    directory: &Path,
    items: Vec<Item>,
) -> Result<()> {
    let mut kept = Vec::new();
    let mut handed_on = BTreeMap::new();
    for item in items {
        match item {
            Item::Use(item)
                if !matches!(item.vis, Visibility::Inherited) && !is_test(&item.attrs) =>
            {
                hand_on(&mut Vec::new(), &item.tree, &mut handed_on);
            }
            Item::Mod(module) if is_test(&module.attrs) => {}
            Item::Mod(module) => below(modules, &path, file, directory, module)?,
            item if is_test(attributes(&item)) => {}
            item => kept.push(item),
        }
    }
    let module = ModuleFile {
        file: file.to_owned(),
        items: kept,
        handed_on,
    };
    modules.insert(path, module);
    Ok(())
}

fn below(
    modules: &mut BTreeMap<ModulePath, ModuleFile>,
    path: &[String],
    file: &Path,
    directory: &Path,
    module: ItemMod,
) -> Result<()> {
    let name = module.ident.to_string();
    let mut path = path.to_vec();
    path.push(name.clone());
    let directory = directory.join(&name);
    if let Some((_, items)) = module.content {
        return add(modules, path, file, &directory, items);
    }
    let beside = directory.with_extension("rs");
    let found = [beside, directory.join("mod.rs")];
    // A module without a file has a `path` attribute, and is code of another crate or generated.
    match found.iter().find(|found| found.is_file()) {
        Some(found) => load(modules, path, found, &directory),
        None => Ok(()),
    }
}

/// Adds the names of a `pub use` with their paths. The names of `a::*` are not known.
fn hand_on(before: &mut Vec<String>, tree: &UseTree, names: &mut BTreeMap<String, Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            hand_on(before, &path.tree, names);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            if let Some(last) = before.last() {
                names.insert(last.clone(), before.clone());
            }
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            let whole = before.iter().cloned().chain([name.clone()]).collect();
            names.insert(name, whole);
        }
        UseTree::Rename(rename) => {
            let whole = before.iter().cloned().chain([rename.ident.to_string()]);
            names.insert(rename.rename.to_string(), whole.collect());
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                hand_on(before, tree, names);
            }
        }
        UseTree::Glob(_) => {}
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.meta.to_token_stream().to_string();
        text.starts_with("cfg") && text.contains("test") && !text.contains("not (test)")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        _ => &[],
    }
}

/// The names that are in scope in one module, and the modules that its code uses.
struct Scope<'a> {
    modules: &'a BTreeMap<ModulePath, ModuleFile>,
    path: &'a [String],
    /// Modules that a `use` has brought in.
    aliases: BTreeMap<String, ModulePath>,
    named: BTreeSet<ModulePath>,
}

impl<'a> Scope<'a> {
    fn of(modules: &'a BTreeMap<ModulePath, ModuleFile>, path: &'a [String]) -> Self {
        let mut scope = Self {
            modules,
            path,
            aliases: BTreeMap::new(),
            named: BTreeSet::new(),
        };
        let items = &modules[path].items;
        let (uses, others): (Vec<_>, Vec<_>) =
            items.iter().partition(|item| matches!(item, Item::Use(_)));
        for item in uses.into_iter().chain(others) {
            scope.walk(item.to_token_stream());
        }
        scope
    }

    /// Finds every path in `tokens`, in macros too.
    fn walk(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < trees.len() {
            match &trees[at] {
                TokenTree::Ident(_) => {
                    let (names, end) = path_at(&trees, at);
                    if is_colons(&trees, end) {
                        self.path_found(&names, trees.get(end + 2));
                    } else if names.len() > 1 {
                        self.name(&names);
                    }
                    at = end;
                }
                TokenTree::Group(group) => {
                    self.walk(group.stream());
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Handles a path and the group of names after it, as in `use a::{b, c::d};`.
    fn path_found(&mut self, names: &[String], behind: Option<&TokenTree>) {
        let group = match behind {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => group,
            _ => return self.name(names),
        };
        let mut part: Vec<TokenTree> = Vec::new();
        let comma = |tree: &TokenTree| matches!(tree, TokenTree::Punct(it) if it.as_char() == ',');
        for tree in group.stream() {
            if comma(&tree) {
                self.part_found(names, &std::mem::take(&mut part));
            } else {
                part.push(tree);
            }
        }
        // A comma may end the last name.
        if !part.is_empty() {
            self.part_found(names, &part);
        }
    }

    /// Handles one of the names in such a group.
    fn part_found(&mut self, before: &[String], part: &[TokenTree]) {
        let (names, end) = path_at(part, 0);
        let mut whole = before.to_vec();
        whole.extend(names.into_iter().filter(|name| name != "self"));
        if is_colons(part, end) {
            self.path_found(&whole, part.get(end + 2));
        } else {
            self.name(&whole);
        }
    }

    /// Records the module that a path leads to.
    fn name(&mut self, names: &[String]) {
        if let Some((module, is_whole)) = self.resolve(self.path, names, MAX_REEXPORT_DEPTH) {
            if is_whole && let Some(last) = names.last() {
                self.aliases.insert(last.clone(), module.clone());
            }
            self.named.insert(module);
        }
    }

    /// The module that a path in the module at `from` leads to, and whether the path names just
    /// that module.
    fn resolve(
        &self,
        from: &[String],
        names: &[String],
        hands: usize,
    ) -> Option<(ModulePath, bool)> {
        let (mut module, used) = self.begin(from, names)?;
        for (index, name) in names.iter().enumerate().skip(used) {
            module.push(name.clone());
            if self.modules.contains_key(&module) {
                continue;
            }
            module.pop();
            if hands > 0
                && let Some(path) = self.modules[&module].handed_on.get(name)
            {
                let mut path = path.clone();
                path.extend_from_slice(&names[index + 1..]);
                if let Some(found) = self.resolve(&module, &path, hands - 1) {
                    return Some(found);
                }
            }
            return Some((module, false));
        }
        Some((module, true))
    }

    /// The module that the first names of a path denote, and the number of those names.
    fn begin(&self, from: &[String], names: &[String]) -> Option<(ModulePath, usize)> {
        let first = names.first()?;
        let mut module = from.to_vec();
        let begun = match first.as_str() {
            "crate" => (Vec::new(), 1),
            "self" => (module, 1),
            "super" => {
                let ups = names.iter().take_while(|name| *name == "super").count();
                module.truncate(module.len().checked_sub(ups)?);
                (module, ups)
            }
            name => {
                module.push(name.to_owned());
                match self.aliases.get(name) {
                    _ if self.modules.contains_key(&module) => (module, 1),
                    Some(alias) if from == self.path => (alias.clone(), 1),
                    _ => return None,
                }
            }
        };
        self.modules.contains_key(&begun.0).then_some(begun)
    }
}

/// The names of the path that begins at `at`, and where it ends.
fn path_at(trees: &[TokenTree], at: usize) -> (Vec<String>, usize) {
    let mut names = Vec::new();
    let mut end = at;
    while let Some(TokenTree::Ident(name)) = trees.get(end) {
        names.push(name.to_string());
        end += 1;
        let goes_on =
            is_colons(trees, end) && matches!(trees.get(end + 2), Some(TokenTree::Ident(_)));
        if !goes_on {
            break;
        }
        end += 2;
    }
    (names, end)
}

fn is_colons(trees: &[TokenTree], at: usize) -> bool {
    let colon =
        |at: usize| matches!(trees.get(at), Some(TokenTree::Punct(it)) if it.as_char() == ':');
    colon(at) && colon(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The imports of a crate of these files, as `file > file`.
    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let imports = of_crate(root, &root.join("lib.rs")).unwrap();
        let mut found = Vec::new();
        for (file, others) in imports {
            found.extend(others.iter().map(|other| format!("{file} > {other}")));
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn paths_lead_to_the_deepest_module() {
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "pub mod deep; use crate::b::Thing;"),
                (
                    "a/deep.rs",
                    "use super::super::b::{self, Thing}; fn f() { b::g() }",
                ),
                ("b.rs", "pub struct Thing; fn h() { crate::a::deep::f() }"),
            ],
            &["a.rs > b.rs", "a/deep.rs > b.rs", "b.rs > a/deep.rs"],
        );
    }

    #[test]
    fn a_parent_imports_what_it_calls_and_not_what_it_declares() {
        check(
            &[
                ("lib.rs", "mod a; mod b; fn f() { a::g() }"),
                ("a.rs", "use super::*;"),
                ("b.rs", ""),
            ],
            &["a.rs > lib.rs", "lib.rs > a.rs"],
        );
    }

    #[test]
    fn nested_groups_macros_and_imported_modules_count() {
        check(
            &[
                ("lib.rs", "mod a; mod b; mod c;"),
                (
                    "a.rs",
                    "use crate::{b::{self, x::{Y}}, c}; fn f() { print!(\"{}\", c::n()) }",
                ),
                ("b.rs", "pub mod x;"),
                ("b/x.rs", "fn f() { format!(\"{}\", crate::c::n()); }"),
                ("c.rs", ""),
            ],
            &[
                "a.rs > b.rs",
                "a.rs > b/x.rs",
                "a.rs > c.rs",
                "b/x.rs > c.rs",
            ],
        );
    }

    #[test]
    fn a_name_that_is_handed_on_is_imported_from_where_it_is() {
        check(
            &[
                (
                    "lib.rs",
                    "mod a; mod b; pub use a::{Thing, deep::Other as Renamed};",
                ),
                ("a.rs", "pub mod deep; pub struct Thing;"),
                ("a/deep.rs", "pub struct Other;"),
                (
                    "b.rs",
                    "use crate::Thing; fn f() -> crate::Renamed { crate::gone() }",
                ),
            ],
            &["b.rs > a.rs", "b.rs > a/deep.rs", "b.rs > lib.rs"],
        );
    }

    #[test]
    fn tests_import_what_they_like() {
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                (
                    "a.rs",
                    "#[cfg(test)] use crate::b; #[cfg(test)] mod tests { use crate::b::f; }",
                ),
                ("b.rs", "use crate::a::g;"),
            ],
            &["b.rs > a.rs"],
        );
    }
}
