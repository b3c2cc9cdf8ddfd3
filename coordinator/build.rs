//! Bundles the page: `web/src` with the libraries of `web/package-lock.json`, by esbuild.
//!
//! The result are three files in the build's own folder: `page/index.html`, `page/app.js` and
//! `page/app.css`. Nothing is written beside the sources. Without npm, or where npm cannot fetch
//! the libraries, the three are the plain page (`web/plain`), which needs no build.
//!
//! `MEMTAPE_PAGE=plain` always takes the plain page, `MEMTAPE_PAGE=full` fails where the other one
//! cannot be made: wheel, archive and image are built so.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What npm needs to install exactly the libraries of the lockfile.
const PACKAGE: [&str; 3] = ["package.json", "package-lock.json", ".npmrc"];

/// Only what the bundle is made of. No package runs a script of its own.
const INSTALL: [&str; 8] = [
    "ci",
    "--omit=dev",
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--prefer-offline",
    "--fetch-retries=1",
    "--loglevel=error",
];

const BUNDLE: [&str; 7] = [
    "--bundle",
    "--minify",
    "--target=es2022",
    "--jsx=automatic",
    "--jsx-import-source=preact",
    "--legal-comments=eof",
    "--log-level=warning",
];

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result {
    for path in ["build.rs", "web/src", "web/plain", "web/index.html", "web/package-lock.json"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=MEMTAPE_PAGE");
    let web = Path::new("web").canonicalize()?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let page = out.join("page");
    fs::create_dir_all(&page)?;
    let wanted = std::env::var("MEMTAPE_PAGE").unwrap_or_default();
    match wanted.as_str() {
        "plain" => plain(&web, &page),
        "full" => full(&web, &out, &page),
        "" => full(&web, &out, &page).or_else(|why| {
            println!("cargo::warning=the program gets the plain page: {why}");
            plain(&web, &page)
        }),
        other => Err(format!("MEMTAPE_PAGE={other}: it is `plain`, `full` or not set").into()),
    }
}

fn plain(web: &Path, page: &Path) -> Result {
    for name in ["index.html", "app.js", "app.css"] {
        fs::copy(web.join("plain").join(name), page.join(name))?;
    }
    Ok(())
}

fn full(web: &Path, out: &Path, page: &Path) -> Result {
    let folder = out.join("npm");
    fs::create_dir_all(&folder)?;
    for name in PACKAGE {
        fs::copy(web.join(name), folder.join(name))?;
    }
    let mut install = Command::new("npm");
    install.args(INSTALL).current_dir(&folder);
    if std::env::var("CARGO_NET_OFFLINE").is_ok_and(|value| value == "true") {
        install.arg("--offline");
    }
    run("npm", &mut install)?;
    let modules = folder.join("node_modules");
    let mut bundle = Command::new(modules.join(".bin/esbuild"));
    bundle.arg(web.join("src/main.tsx")).args(BUNDLE).env("NODE_PATH", &modules);
    bundle.arg(format!("--outfile={}", page.join("app.js").display()));
    run("esbuild", &mut bundle)?;
    fs::copy(web.join("index.html"), page.join("index.html"))?;
    Ok(())
}

/// Runs a command to its end. Its last line of errors says why it failed.
fn run(name: &str, command: &mut Command) -> Result {
    let ended = command.output().map_err(|why| format!("{name} cannot be run: {why}"))?;
    if ended.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&ended.stderr);
    let line = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason");
    Err(format!("{name} failed: {}", line.trim()).into())
}
