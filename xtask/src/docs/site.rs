//! Dead links in a built site: files that are not there, and anchors that their page lacks.
//!
//! Links to other sites are not followed: the check needs no network.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::files;

/// Pages that mdBook makes of other pages: the whole book on one page, and the answer to an
/// unknown address, whose links begin at the site's root.
const MADE_OF_OTHERS: [&str; 2] = ["print.html", "404.html"];

/// One line for each dead link of the site.
pub(super) fn dead_links(site: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for path in files(site, ".html")? {
        let text = fs::read_to_string(&path)?;
        pages.insert(path, text);
    }
    let ids: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path, attributes(text, "id").collect())).collect();
    let mut dead = Vec::new();
    for (path, text) in &pages {
        if path.strip_prefix(site).is_ok_and(|name| MADE_OF_OTHERS.iter().any(|made| name == *made))
        {
            continue;
        }
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            if !leads_somewhere(path, link, &ids) {
                let page = path.strip_prefix(site).unwrap_or(path);
                dead.push(format!("{}: {link} leads nowhere", page.display()));
            }
        }
    }
    dead.dedup();
    Ok(dead)
}

fn leads_somewhere(page: &Path, link: &str, ids: &BTreeMap<&PathBuf, BTreeSet<&str>>) -> bool {
    if link.contains(':') || link.is_empty() {
        return true;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let file = file.split('?').next().unwrap_or_default();
    let folder = page.parent().unwrap_or(Path::new("/"));
    let target = if file.is_empty() { Ok(page.into()) } else { folder.join(file).canonicalize() };
    let Ok(target) = target else { return false };
    anchor.is_empty() || ids.get(&target).is_none_or(|ids| ids.contains(anchor))
}

/// The values of an attribute in a page, as mdBook writes them: in double quotes.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let marks = format!(" {name}=\"");
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&marks)?;
        let (value, after) = after.split_once('"')?;
        rest = after;
        Some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let site = folder.path().canonicalize().expect("a folder");
        let page = "<h1 id=\"top\"></h1><a href=\"#top\"></a><a href=\"b.html#here\"></a>\
                    <a href=\"https://example.org\"></a><img src=\"c.svg\">";
        fs::write(site.join("a.html"), page).expect("a file");
        fs::write(site.join("b.html"), "<p id=\"here\"><a href=\"a.html#none\"></a>")
            .expect("a file");
        fs::write(site.join("print.html"), "<a href=\"gone.html\"></a>").expect("a file");
        let dead = dead_links(&site).expect("a site");
        assert_eq!(dead, ["a.html: c.svg leads nowhere", "b.html: a.html#none leads nowhere"]);
    }
}
