//! Parses a page as a browser does.

use std::collections::{BTreeMap, BTreeSet};

use html5ever::tendril::TendrilSink as _;
use markup5ever_rcdom::{Handle, NodeData, RcDom};

/// An element, without its children.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: BTreeMap<String, String>,
    /// All text within the element.
    pub(crate) text: String,
    /// Names of the enclosing elements, outermost first.
    pub(crate) around: Vec<String>,
}

impl Element {
    pub(crate) fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    pub(crate) fn has_class(&self, class: &str) -> bool {
        self.attribute("class").split(' ').any(|c| c == class)
    }
}

/// A parsed page.
pub(crate) struct Page {
    pub(crate) elements: Vec<Element>,
    /// Errors that the parser corrected.
    pub(crate) errors: Vec<String>,
}

impl Page {
    pub(crate) fn parse(html: &str) -> Self {
        let dom = html5ever::parse_document(RcDom::default(), html5ever::ParseOpts::default())
            .one(html.to_owned());
        let mut elements = Vec::new();
        collect(&dom.document, &mut Vec::new(), &mut elements);
        let errors = dom
            .errors
            .borrow()
            .iter()
            .map(ToString::to_string)
            .collect();
        Self { elements, errors }
    }

    /// Checks that the page is sound: no parse error, no duplicate id, no broken link, and no value that is
    /// not a number.
    pub(crate) fn sound(name: &str, html: &str) -> Self {
        let page = Self::parse(html);
        assert!(page.errors.is_empty(), "{name}: {:?}", page.errors);
        assert!(!html.contains("NaN"), "{name}");
        let ids: Vec<&str> = page
            .elements
            .iter()
            .map(|element| element.attribute("id"))
            .filter(|id| !id.is_empty())
            .collect();
        let distinct: BTreeSet<_> = ids.iter().collect();
        assert_eq!(ids.len(), distinct.len(), "{name}: an id twice");
        for link in page.named("a").chain(page.named("use")) {
            let target = link.attribute("href").strip_prefix('#');
            assert!(
                target.is_some_and(|id| ids.contains(&id)),
                "{name}: link to {}",
                link.attribute("href")
            );
        }
        page
    }

    pub(crate) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.elements
            .iter()
            .filter(move |element| element.name == name)
    }

    pub(crate) fn with_class<'a>(&'a self, class: &'a str) -> impl Iterator<Item = &'a Element> {
        self.elements
            .iter()
            .filter(move |element| element.has_class(class))
    }

    pub(crate) fn by_id(&self, id: &str) -> Option<&Element> {
        self.elements
            .iter()
            .find(|element| element.attribute("id") == id)
    }
}

fn collect(node: &Handle, around: &mut Vec<String>, out: &mut Vec<Element>) {
    let NodeData::Element { name, attrs, .. } = &node.data else {
        for child in node.children.borrow().iter() {
            collect(child, around, out);
        }
        return;
    };
    let name = name.local.to_string();
    out.push(Element {
        name: name.clone(),
        attributes: attrs
            .borrow()
            .iter()
            .map(|attribute| {
                (
                    attribute.name.local.to_string(),
                    attribute.value.to_string(),
                )
            })
            .collect(),
        text: text(node),
        around: around.clone(),
    });
    around.push(name);
    for child in node.children.borrow().iter() {
        collect(child, around, out);
    }
    around.pop();
}

fn text(node: &Handle) -> String {
    match &node.data {
        NodeData::Text { contents } => contents.borrow().to_string(),
        _ => node.children.borrow().iter().map(text).collect(),
    }
}
