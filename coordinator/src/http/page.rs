//! The page, embedded: nothing to install beside the binary, nothing loaded from elsewhere.
//!
//! Every file of `web` is in one table, each under its own path: the modules import each other by
//! those paths.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::http::request::Api;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// A file that is served: its path, its type and its content.
type File = (&'static str, &'static str, &'static str);

/// A file of `web` under its own path.
macro_rules! web {
    ($path:literal, $content_type:expr) => {
        ($path, $content_type, include_str!(concat!("../../web", $path)))
    };
}

const FILES: [File; 25] = [
    ("/", HTML, include_str!("../../web/index.html")),
    // Browsers ask for this one whatever the page says.
    ("/favicon.ico", IMAGE, include_str!("../../web/favicon.svg")),
    web!("/index.html", HTML),
    web!("/favicon.svg", IMAGE),
    web!("/style.css", STYLE),
    web!("/api.js", SCRIPT),
    web!("/app.js", SCRIPT),
    web!("/elements.js", SCRIPT),
    web!("/route.js", SCRIPT),
    web!("/units.js", SCRIPT),
    web!("/words.js", SCRIPT),
    web!("/charts/births.js", SCRIPT),
    web!("/charts/frame.js", SCRIPT),
    web!("/charts/heat.js", SCRIPT),
    web!("/charts/heat_map.js", SCRIPT),
    web!("/charts/layers.js", SCRIPT),
    web!("/charts/memory.js", SCRIPT),
    web!("/views/actions.js", SCRIPT),
    web!("/views/capture.js", SCRIPT),
    web!("/views/home.js", SCRIPT),
    web!("/views/sign_in.js", SCRIPT),
    web!("/views/incident.js", SCRIPT),
    web!("/views/job.js", SCRIPT),
    web!("/views/nodes.js", SCRIPT),
    web!("/views/parts.js", SCRIPT),
];

/// The style sheet of the page, for `memtape report`.
pub const PAGE_STYLE: &str = include_str!("../../web/style.css");

/// A module of the page by its path, for `memtape report`.
pub fn page_script(path: &str) -> Option<&'static str> {
    FILES.iter().find(|file| file.0 == path && file.1 == SCRIPT).map(|file| file.2)
}

/// The page and its parts; everything else is not found.
pub(crate) fn router() -> Router<Api> {
    let router = FILES.into_iter().fold(Router::new(), |router, (path, content_type, text)| {
        router.route(path, get(async move || file(content_type, text)))
    });
    router.fallback(async || (StatusCode::NOT_FOUND, "there is no such page\n"))
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    // A new version of the coordinator has a new page: it is always asked for again.
    let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, "no-cache")];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn files_below(folder: &Path, root: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("the folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                files_below(&path, root, found);
            } else {
                let below = path.strip_prefix(root).expect("below the root");
                found.insert(format!("/{}", below.display()));
            }
        }
    }

    #[test]
    fn every_file_of_the_page_is_served() {
        let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
        let mut expected = BTreeSet::from(["/".to_string(), "/favicon.ico".to_string()]);
        files_below(&web, &web, &mut expected);
        let served: BTreeSet<String> = FILES.iter().map(|file| file.0.to_string()).collect();
        assert_eq!(served, expected);
    }

    /// The page loads nothing from another host, nor from a path that is not served.
    #[test]
    fn every_import_of_the_page_is_served() {
        let mut imports = 0;
        for (path, _, text) in FILES.iter().filter(|file| file.1 == SCRIPT) {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            for line in text.split(" from '").skip(1) {
                let name = line.split('\'').next().unwrap_or_default();
                let target = match name.strip_prefix("../") {
                    Some(name) => format!("/{name}"),
                    None => format!("{folder}/{}", name.trim_start_matches("./")),
                };
                assert!(FILES.iter().any(|file| file.0 == target), "{path} imports {name}");
                imports += 1;
            }
        }
        assert!(imports > 20, "imports are found: {imports}");
    }
}
