//! `memtape store`: checks or rebuilds the store of a coordinator that is not running, makes and
//! restores backups, moves a store into a bucket, and exports tables. Of a cluster's store, it
//! checks one.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use memtape_core::placement::JobsShard;
use memtape_proto::api::{Cluster, MissingShard};
use memtape_store::cluster::checking::check as check_cluster;
use memtape_store::cluster::moving::move_store;
use memtape_store::reports::MissingSnapshots;
use memtape_store::{
    BackupContents, Finding, Store, StoreCheck, TableRows, Tables, Tokens, WithSnapshots,
    backup_folder, check_backup, check_store, rebuild_store, restore_backup,
};

use crate::globals::Globals;
use crate::render::units::{self, plural};
use crate::runtime;

/// `memtape store`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum StoreCommand {
    /// Read a whole store, or a backup, and report damage. Changes nothing; exits with 1 if there
    /// is damage. Of a cluster, everything that was acknowledged before is read, also while a
    /// coordinator works.
    Check(CheckArgs),
    /// Back up the store of a running coordinator into one file; with --dir, of one that is not
    /// running.
    Backup(BackupArgs),
    /// Make a store of a backup, in an empty folder.
    Restore(RestoreArgs),
    /// Move the store of a coordinator that is not running into the bucket of a cluster. A move
    /// that was stopped goes on when it is called again. The folder keeps its files, and no
    /// coordinator starts with it any more.
    Move(MoveArgs),
    /// Write jobs, ranks, steps, incidents and actions as tables, for questions about many jobs. In
    /// a cluster, writes the tables of all shards. Exits with 1 if a shard is missing.
    Export(ExportArgs),
    /// Rebuild the index from the journal and the steps. The old index is kept.
    Rebuild(StoreArgs),
}

/// Which store.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// The coordinator's data folder.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// What to check.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The coordinator's data folder, the file of a backup, or s3://BUCKET/PREFIX of a cluster,
    /// with endpoint, region and keys in the AWS_ variables.
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
}

/// What to back up.
#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// The file to write; one that is there is never replaced.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The data folder of a coordinator that is not running [default: ask the running one].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The shard of a cluster [default: that of the coordinator that is asked].
    #[arg(long, value_name = "N", conflicts_with = "dir")]
    pub(crate) shard: Option<u16>,
    /// Leave the snapshots of captures out, which are most of the bytes.
    #[arg(long)]
    pub(crate) without_snapshots: bool,
}

/// What to restore.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// The file of a backup.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The data folder to make; it is empty, or not there.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Restore the tokens, too: those that were revoked since the backup are valid again.
    #[arg(long)]
    pub(crate) keep_tokens: bool,
}

/// What to move, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// The coordinator's data folder.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// An empty prefix for the cluster: s3://BUCKET/PREFIX. Endpoint, region and keys are in the
    /// AWS_ variables.
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Leave out the snapshots that the store lacks; else they are named, and the move does not
    /// end.
    #[arg(long)]
    pub(crate) without_missing: bool,
}

/// What to export.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// The folder for the tables, in Parquet; tables of an earlier export are replaced.
    #[arg(long, value_name = "DIR")]
    pub(crate) parquet: PathBuf,
    /// The data folder of a coordinator that is not running [default: ask the running one].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The file of a backup.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub(crate) backup: Option<PathBuf>,
}

/// Checks, rebuilds, backs up, restores, moves or exports a store.
/// The error is one line: what is wrong with the store, or why it cannot be opened.
pub(crate) fn run(command: &StoreCommand, globals: &Globals) -> anyhow::Result<()> {
    match command {
        StoreCommand::Check(args) if args.path.is_file() => {
            let contents = check_backup(&args.path)?;
            globals.say(&contents, || described(&contents, "the backup is whole"))
        }
        StoreCommand::Check(args) => check(&args.path, globals),
        StoreCommand::Move(args) => moved(args, globals),
        StoreCommand::Backup(args) => backup(args, globals),
        StoreCommand::Restore(args) => restore(args, globals),
        StoreCommand::Export(args) => export(args, globals),
        StoreCommand::Rebuild(args) => rebuild(&args.dir, globals),
    }
}

fn check(dir: &Path, globals: &Globals) -> anyhow::Result<()> {
    let checked = match dir.to_str().filter(|path| path.contains("://")) {
        Some(url) => check_cluster(url, runtime::threads()?.handle())?,
        None => check_store(dir)?,
    };
    let mut object = serde_json::to_value(&checked)?;
    object["ok"] = checked.findings.is_empty().into();
    globals.say(&object, || checked_text(&checked))?;
    match checked.findings.len() {
        0 => Ok(()),
        count => bail!("the store in {} has {}", dir.display(), plural(count as u64, "finding")),
    }
}

fn checked_text(checked: &StoreCheck) -> String {
    let StoreCheck { records, blocks, rows, snapshots, bytes, .. } = checked;
    let mut lines = Vec::new();
    if checked.snapshots_elsewhere > 0 {
        let count = plural(checked.snapshots_elsewhere, "snapshot");
        lines.push(format!("not checked: {count} in object storage"));
    }
    if checked.clock_jumps > 0 {
        lines.push(format!(
            "note: the coordinator's wall clock jumped {}, last by {} s: times shown are off, and \
             nothing stored is hidden or deleted by it",
            plural(checked.clock_jumps, "time"),
            checked.clock_jumped_seconds
        ));
    }
    let finding = |Finding { part, what, remedy }: &Finding| format!("{part} {what}: {remedy}");
    lines.extend(checked.findings.iter().map(finding));
    lines.push(format!(
        "{}, {} in {}, {}; {} read",
        plural(*records, "record"),
        plural(*rows, "step"),
        plural(*blocks, "block"),
        plural(*snapshots, "snapshot"),
        units::bytes(*bytes)
    ));
    lines.join("\n")
}

/// Writes beside the file, and gives it its name when all of it was verified and is durable.
fn backup(args: &BackupArgs, globals: &Globals) -> anyhow::Result<()> {
    let shown = args.file.display();
    ensure!(!args.file.exists(), "{shown} is there already: name another file");
    let mut aside = args.file.as_os_str().to_owned();
    aside.push(".part");
    let aside = PathBuf::from(aside);
    let file = make_aside(&aside)?;
    let made = write_backup(args, globals, &aside, file);
    if made.is_err() {
        // It is no backup, and says so by its name, if it cannot be removed.
        let _ = std::fs::remove_file(&aside);
    }
    let (contents, part) = made?;
    // Unlike a rename, it never replaces a file.
    std::fs::hard_link(&aside, &args.file)
        .with_context(|| format!("{} cannot be called {shown}", aside.display()))?;
    std::fs::remove_file(&aside)?;
    let folder = args.file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    if let Some(part) = part.filter(|part| args.shard.is_none() && part.shards > 1) {
        eprintln!("memtape: the backup is of {}: --shard names another one", named(part));
    }
    globals.say(&contents, || described(&contents, &format!("the backup is in {shown}")))
}

/// Makes the file that a backup is written to: for this user alone, and never one that is there,
/// which another backup may be writing.
fn make_aside(aside: &Path) -> anyhow::Result<File> {
    let shown = aside.display();
    match File::options().write(true).create_new(true).mode(0o600).open(aside) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{shown} is there already: delete it if no other backup is writing it")
        }
        Err(error) => Err(error).with_context(|| format!("{shown} cannot be written")),
    }
}

/// Writes the backup; what it holds, and which shard it is of, if the coordinator says it.
fn write_backup(
    args: &BackupArgs,
    globals: &Globals,
    aside: &Path,
    mut file: File,
) -> anyhow::Result<(BackupContents, Option<JobsShard>)> {
    let mut part = None;
    let unwritten = || format!("{} cannot be written", aside.display());
    if let Some(dir) = &args.dir {
        let with = match args.without_snapshots {
            true => WithSnapshots::No,
            false => WithSnapshots::Yes,
        };
        backup_folder(dir, with, &mut file)?;
    } else {
        let snapshots = if args.without_snapshots { "false" } else { "true" };
        let path = ["store", "backup"];
        let shard = args.shard.map(|shard| shard.to_string());
        let mut query = vec![("snapshots", snapshots)];
        query.extend(shard.iter().map(|shard| ("shard", shard.as_str())));
        let accept = |of| {
            part = of;
            args.shard.map_or(Ok(()), |asked| is_of(asked, of))
        };
        globals.client()?.download(&path, &query, accept, |bytes| {
            file.write_all(bytes).with_context(unwritten)
        })?;
    }
    file.sync_all().with_context(unwritten)?;
    // What is on the disk counts, not what was sent.
    Ok((check_backup(aside)?, part))
}

/// Fails when the coordinator sent a shard other than the one that was asked for.
fn is_of(asked: u16, answered: Option<JobsShard>) -> anyhow::Result<()> {
    match answered {
        Some(part) if part.shard == asked => Ok(()),
        Some(part) => bail!(
            "the coordinator sent {} in place of shard {asked}: check the addresses of \
             --coordinator",
            named(part)
        ),
        None => bail!(
            "the coordinator does not say which shard it sent in place of shard {asked}: update it"
        ),
    }
}

fn named(JobsShard { shard, shards }: JobsShard) -> String {
    format!("shard {shard} of {shards}")
}

/// What a backup holds, and what it lacks.
fn described(contents: &BackupContents, done: &str) -> String {
    let BackupContents { header, files, snapshots, bytes, missing } = contents;
    let missing = missing.iter();
    let mut lines: Vec<String> = missing
        .map(|missing| format!("not in the backup, as the store lacked it: {missing}"))
        .collect();
    if let (true, Some(url)) = (*snapshots == 0, &header.snapshots_url) {
        lines.push(format!("not in the backup: the snapshots in {url}"));
    }
    lines.push(format!(
        "{done}: {} up to change {}, {}, {}",
        plural(*files, "file"),
        header.sequence,
        plural(*snapshots, "snapshot"),
        units::bytes(*bytes)
    ));
    lines.join("\n")
}

fn restore(args: &RestoreArgs, globals: &Globals) -> anyhow::Result<()> {
    let tokens = if args.keep_tokens { Tokens::Keep } else { Tokens::LeaveOut };
    let restored = restore_backup(&args.file, &args.dir, tokens)?;
    globals.say(&restored, || {
        let tokens = match restored.tokens_left_out {
            0 => String::new(),
            count => format!(
                "{} left out: make new ones with memtape token create\n",
                plural(count, "token")
            ),
        };
        tokens + &described(&restored.contents, "the store is restored")
    })
}

fn moved(args: &MoveArgs, globals: &Globals) -> anyhow::Result<()> {
    let (dir, url) = (args.dir.display(), &args.url);
    let missing = match args.without_missing {
        true => MissingSnapshots::LeaveOut,
        false => MissingSnapshots::Refuse,
    };
    let moved = move_store(&args.dir, url, missing, runtime::threads()?.handle())?;
    globals.say(&moved, || {
        let missing = moved.missing.iter();
        let mut lines: Vec<String> = missing
            .map(|missing| format!("not moved, as the store lacked it: {missing}"))
            .collect();
        if moved.files > 0 {
            lines.push(format!(
                "{} and {}, {}, are the same in the bucket; {} were copied now",
                plural(moved.files, "file"),
                plural(moved.snapshots, "snapshot"),
                units::bytes(moved.bytes),
                units::bytes(moved.copied_bytes)
            ));
        }
        lines.push(format!("{dir} is moved: start coordinators with --cluster {url}"));
        lines.join("\n")
    })
}

/// Writes the tables of stores that are made of backups: so no store is held up or changed.
fn export(args: &ExportArgs, globals: &Globals) -> anyhow::Result<()> {
    ensure!(
        cfg!(feature = "full"),
        "this build writes no Parquet: add `--features full` to the build, or take the wheel or \
         the image"
    );
    let folder = &args.parquet;
    ensure!(
        !folder.to_string_lossy().contains("://"),
        "--parquet takes a folder: the coordinators of a cluster write tables into its bucket with \
         --cluster-tables-every"
    );
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    let scratch = tempfile::tempdir_in(folder)?;
    let mut tables = Tables::in_folder(scratch.path())?;
    let missing = match &args.backup {
        Some(file) => {
            add_store(&mut tables, file, JobsShard { shard: 0, shards: 1 }, scratch.path())?;
            Vec::new()
        }
        None => add_shards(&mut tables, args, globals, scratch.path())?,
    };
    let rows = tables.end_in(scratch.path(), folder)?;
    globals.say(&rows, || {
        let TableRows { attempts, ranks, devices, steps, incidents, actions, .. } = rows;
        format!(
            "the tables are in {}: {}, {}, {}, {} of steps, {}, {}",
            folder.display(),
            plural(attempts, "attempt"),
            plural(ranks, "rank"),
            plural(devices, "device"),
            plural(steps, "record"),
            plural(incidents, "incident"),
            plural(actions, "action"),
        )
    })?;
    ensure!(missing.is_empty(), "the tables lack {}", missing.join("; "));
    Ok(())
}

/// Adds the store of the coordinator, or those of all shards of its cluster, one after the other.
/// Returns the shards that did not answer, each with the cause; that none did is an error.
fn add_shards(
    tables: &mut Tables<File>,
    args: &ExportArgs,
    globals: &Globals,
    scratch: &Path,
) -> anyhow::Result<Vec<String>> {
    let cluster = match args.dir {
        Some(_) => Cluster::default(),
        None => globals.client()?.fetch::<Cluster>(&["cluster"], &[])?,
    };
    let why = |missing: MissingShard| format!("shard {}: {}", missing.shard, missing.why);
    let shards = cluster.shards.len() + cluster.missing_shards.len();
    let mut missing: Vec<String> = cluster.missing_shards.into_iter().map(why).collect();
    // A store without shards is asked without a number.
    let known = cluster.shards.into_iter().map(|known| known.shard).filter(|_| shards > 1);
    let mut asked: Vec<Option<u16>> = known.map(Some).collect();
    if shards <= 1 {
        asked.push(None);
    }
    let mut added = 0;
    for shard in asked {
        let backup = scratch.join("backup");
        let dir = args.dir.clone();
        let of = BackupArgs { file: backup, dir, shard, without_snapshots: true };
        let file = make_aside(&of.file)?;
        let written = write_backup(&of, globals, &of.file, file);
        match (written, shard) {
            (Ok(_), shard) => {
                let shards = u16::try_from(shards.max(1)).unwrap_or(u16::MAX);
                let shard = JobsShard { shard: shard.unwrap_or(0), shards };
                add_store(tables, &of.file, shard, scratch)?;
                added += 1;
            }
            (Err(why), Some(shard)) => missing.push(format!("shard {shard}: {why:#}")),
            (Err(why), None) => return Err(why),
        }
        std::fs::remove_file(&of.file)?;
    }
    ensure!(
        added > 0,
        "no shard was exported, and the tables in {} stay as they are: {}",
        args.parquet.display(),
        missing.join("; ")
    );
    Ok(missing)
}

/// Adds the rows of a store that is made of a backup.
fn add_store(
    tables: &mut Tables<File>,
    backup: &Path,
    shard: JobsShard,
    scratch: &Path,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir_in(scratch)?;
    let path = folder.path().join("store");
    restore_backup(backup, &path, Tokens::LeaveOut)?;
    let (store, _, _) = Store::open(&path)?;
    Ok(tables.add(&store, shard, u64::MAX, &mut || Ok(()))?)
}

fn rebuild(dir: &Path, globals: &Globals) -> anyhow::Result<()> {
    let rebuilt = rebuild_store(dir)?;
    globals.say(&rebuilt, || {
        let mut lines = vec![format!(
            "the index was rebuilt: {}, {} of steps",
            plural(rebuilt.records, "record"),
            plural(rebuilt.blocks, "block")
        )];
        let aside = rebuilt.aside.iter();
        lines.extend(aside.map(|aside| format!("the old index is kept in {}", aside.display())));
        if rebuilt.journal_gaps > 0 {
            lines.push(format!(
                "the journal was damaged at {} offsets; {} came back from its previous generation",
                rebuilt.journal_gaps,
                plural(rebuilt.recovered, "record")
            ));
        }
        lines.extend(rebuilt.lost.iter().map(|lost| format!("expected no more: {lost}")));
        lines.join("\n")
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{SocketAddr, TcpListener};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A coordinator of two shards, which answers each request for a backup with `answer`.
    fn coordinator(answer: &'static str) -> SocketAddr {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut request) = (stream.unwrap(), [0; 4096]);
                let length = stream.read(&mut request).unwrap();
                let cluster = r#"{"shards":[{"shard":0},{"shard":1}]}"#;
                let answer = match request[..length].starts_with(b"GET /api/v1/cluster ") {
                    true => format!("200 OK\r\ncontent-length: {}\r\n\r\n{cluster}", cluster.len()),
                    false => answer.to_string(),
                };
                let answer = format!("HTTP/1.1 {}", answer.replacen("\r\n", CLOSE, 1));
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    const CLOSE: &str = "\r\nconnection: close\r\n";

    fn globals(address: SocketAddr) -> Globals {
        Globals {
            coordinator: address.to_string(),
            tls_dir: None,
            token_file: None,
            json: false,
            color: clap::ColorChoice::Never,
            die_with_parent: None,
        }
    }

    #[test]
    #[cfg(feature = "full")]
    fn an_export_of_no_shard_leaves_the_tables_as_they_are() {
        let away = "503 Service Unavailable\r\ncontent-length: 16\r\n\r\n{\"error\":\"away\"}";
        let dir = tempfile::tempdir().unwrap();
        let table = dir.path().join("steps.parquet");
        std::fs::write(&table, "of yesterday").unwrap();
        let parquet = dir.path().to_path_buf();
        let args = ExportArgs { parquet, dir: None, backup: None };
        let line = export(&args, &globals(coordinator(away))).unwrap_err().to_string();
        assert!(line.ends_with("stay as they are: shard 0: away; shard 1: away"), "{line}");
        assert_eq!(std::fs::read(&table).unwrap(), b"of yesterday");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no other file");
    }

    #[test]
    fn a_backup_of_another_shard_is_refused() {
        for (header, expected) in [
            ("memtape-shard: 0/2\r\n", "sent shard 0 of 2 in place of shard 1: check"),
            ("", "does not say which shard it sent in place of shard 1: update it"),
        ] {
            let answer = format!("200 OK\r\n{header}content-length: 4\r\n\r\nnone");
            let globals = globals(coordinator(answer.leak()));
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("a.backup");
            let args = BackupArgs { file, dir: None, shard: Some(1), without_snapshots: true };
            let line = backup(&args, &globals).unwrap_err().to_string();
            assert!(line.contains(expected) && line.lines().count() == 1, "{line}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_backup_is_written_to_a_new_file_of_this_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let aside = dir.path().join("a.part");
        let file = make_aside(&aside).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let line = make_aside(&aside).unwrap_err().to_string();
        assert!(line.contains("a.part is there already: delete it"), "{line}");
        let (planted, target) = (dir.path().join("b.part"), dir.path().join("target"));
        symlink(&target, &planted).unwrap();
        assert!(make_aside(&planted).is_err());
        assert!(!target.exists());
    }
}
