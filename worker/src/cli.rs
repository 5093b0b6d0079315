//! The command line of `holdfast-worker`, and what runs first and last in the process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use holdfast_shared::config::Config;
use holdfast_shared::db::Db;
use holdfast_shared::db::workers::WorkerState;
use holdfast_shared::domain::credential::Credentials;
use holdfast_shared::domain::policy::Span;
use holdfast_shared::queue::{AtStart, Consumer, ConsumerOptions, OnMissing, Publisher, engine_queue};
use holdfast_shared::store::PackStore;
use holdfast_shared::telemetry::{LogFormat, init};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::metrics::Metrics;
use crate::repository::{self, RepositorySettings};
use crate::sandbox::AnySandbox;
use crate::sandbox::docker::Docker;
use crate::service::{Settings, Worker};
use crate::{heartbeat, relay, slots, sweep};

mod computer;
pub(crate) use computer::look;
mod doctor;
mod gc;
mod image;

/// Runs turns: leases a session, starts or resumes its computer, runs one turn, checkpoints, commits.
///
/// Any number of workers may run, on any number of hosts. Everything it must not lose is in Postgres.
#[derive(Parser, Debug)]
#[command(name = "holdfast-worker", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-worker                                  serve the queue `default` with 2 slots
  holdfast-worker --queue default --queue night --slots 4
  holdfast-worker image build                      build the sandbox image `holdfast-sandbox:local`
  holdfast-worker doctor                           check everything a turn needs here
  holdfast-worker network ensure                   make the network `isolated`, print its gateway

Environment: DATABASE_URL, AMQP_URL, DOCKER_HOST, HOLDFAST_METRICS_ADDR, HOLDFAST_LEASE_TTL, ...
Exit status: 0 after a clean stop, 2 on wrong usage, 3 when a service cannot be reached.";

#[derive(Args, Debug)]
struct Run {
    /// Queue to serve; may be given several times [default: the setting `queue`]
    #[arg(long, value_name = "NAME")]
    queue: Vec<String>,
    /// Turns at a time [default: the setting `slots`]
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// How long running turns may go on after SIGTERM before they are handed over
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    grace: Span,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// The sandbox image
    #[command(subcommand)]
    Image(ImageCommand),
    /// The network `isolated`
    #[command(subcommand)]
    Network(NetworkCommand),
    /// The computers of this host's engine
    #[command(subcommand)]
    Computer(computer::ComputerCommand),
    /// Remove from this host's engine what no session needs
    Gc(gc::GcArgs),
    /// Check database, broker, engine, image and limits, line by line
    Doctor(doctor::DoctorArgs),
}

#[derive(Subcommand, Debug)]
enum ImageCommand {
    /// Build the image from public package sources and confirm its tag in the image store
    Build(image::BuildArgs),
}

#[derive(Subcommand, Debug)]
enum NetworkCommand {
    /// Make it unless it is there; print its gateway
    Ensure,
    /// Remove it if nothing is attached
    Rm,
}

/// Runs the command on Docker; the exit code is for `main`.
pub async fn run() -> u8 {
    let on_docker = async |config: &Config, installation: &str| {
        let engine = docker(config, installation).await?;
        let engine_id = engine.engine_id().to_owned();
        Ok(AnySandbox::new("docker", &engine_id, engine))
    };
    run_with(std::env::args_os(), on_docker).await
}

/// Runs the command with the computers of any provider; `provide` is asked once, with the installation's short name.
pub async fn run_with(
    args: impl IntoIterator<Item = std::ffi::OsString>,
    provide: impl AsyncFnOnce(&Config, &str) -> Result<AnySandbox, String>,
) -> u8 {
    let cli = Cli::parse_from(args);
    let mut flags = BTreeMap::new();
    if let Some(slots) = cli.run.slots {
        flags.insert("slots", slots.to_string());
    }
    let config = match Config::load(&flags) {
        Ok(config) => config,
        Err(error) => return fail(2, &format!("{:#}", anyhow::Error::new(error))),
    };
    match cli.command {
        None => serve(config, cli.run, provide).await,
        Some(Command::Image(ImageCommand::Build(args))) => image::run(&config, args).await,
        Some(Command::Network(command)) => network(&config, command).await,
        Some(Command::Computer(command)) => computer::run(&config, command).await,
        Some(Command::Gc(args)) => gc::run(&config, args).await,
        Some(Command::Doctor(args)) => doctor::run(&config, args).await,
    }
}

fn fail(code: u8, line: &str) -> u8 {
    eprintln!("holdfast-worker: {}", line.replace('\n', " "));
    code
}

async fn docker(config: &Config, installation: &str) -> Result<Docker, String> {
    Docker::connect(installation, Some(&config.isolated_subnet))
        .await
        .map_err(|e| format!("{:#}", anyhow::Error::new(e)))
}

async fn network(config: &Config, command: NetworkCommand) -> u8 {
    let engine = match docker(config, "network").await {
        Ok(engine) => engine,
        Err(line) => return fail(3, &line),
    };
    let done = match command {
        NetworkCommand::Ensure => engine.gateway().await.map(|gateway| println!("{gateway}")),
        NetworkCommand::Rm => match engine.remove_isolated_network().await {
            Ok(true) => {
                eprintln!("the network is gone");
                Ok(())
            }
            Ok(false) => return fail(1, "the network is left: it is not ours, or a container is attached to it"),
            Err(error) => Err(error),
        },
    };
    done.map_or_else(|e| fail(1, &format!("{:#}", anyhow::Error::new(e))), |()| 0)
}

async fn serve(config: Config, run: Run, provide: impl AsyncFnOnce(&Config, &str) -> Result<AnySandbox, String>) -> u8 {
    let setting = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let format = setting("HOLDFAST_LOG_FORMAT").unwrap_or_default().parse::<LogFormat>();
    let filter = setting("HOLDFAST_LOG").or_else(|| setting("RUST_LOG"));
    if let Err(error) = format.and_then(|format| init(format, filter.as_deref())) {
        return fail(2, &format!("{:#}", anyhow::Error::new(error)));
    }
    let (worker, consumer, orphans, liveness) = match start(&config, run, provide).await {
        Ok(parts) => parts,
        Err(line) => return fail(3, &line),
    };
    let http = match worker.metrics.serve(config.metrics_addr, Arc::clone(&worker), consumer.state()).await {
        Ok(http) => http,
        Err(line) => return fail(3, &line),
    };
    info!(queues = ?worker.settings.queues, slots = worker.settings.slots, engine = %worker.engine_id,
          metrics = %format!("http://{}/metrics", http.address), "worker ready");
    tokio::spawn(stop_on_signal(Arc::clone(&worker)));
    worker.background("heartbeat", heartbeat::beat(Arc::clone(&worker)));
    worker.background("liveness", heartbeat::keep_liveness(Arc::clone(&worker), liveness));
    worker.background("cancels", heartbeat::hear_cancels(Arc::clone(&worker)));
    worker.background("relay", relay::run(Arc::clone(&worker)));
    worker.background("orphans", sweep::watch_orphans(Arc::clone(&worker)));
    worker.background("house", sweep::keep_house(Arc::clone(&worker)));
    slots::take_turns(Arc::clone(&worker), Arc::clone(&consumer), orphans).await;
    stop(&worker, &consumer).await;
    http.task.abort();
    0
}

type Parts = (
    Arc<Worker>,
    Arc<Consumer>,
    mpsc::Receiver<holdfast_protocol::TurnId>,
    Option<holdfast_shared::db::workers::Liveness>,
);

/// Reaches every service; each failure is one line that says which, where, and what to do.
async fn start(
    config: &Config,
    run: Run,
    provide: impl AsyncFnOnce(&Config, &str) -> Result<AnySandbox, String>,
) -> Result<Parts, String> {
    let text = |error: holdfast_shared::db::DbError| format!("{:#}", anyhow::Error::new(error));
    let db = Db::reach(config.database_url.reveal(), config.database_connections)
        .await
        .map_err(|error| format!("{}; is PostgreSQL running there? set DATABASE_URL", text(error)))?;
    db.migrate().await.map_err(text)?;
    let installation = db.installation().await.map_err(text)?;
    let sandbox = provide(config, &installation).await?;
    let engine_id = sandbox.engine_id().to_owned();
    let queues = if run.queue.is_empty() { vec![config.queue.clone()] } else { run.queue };
    for queue in &queues {
        db.ensure_queue(queue).await.map_err(text)?;
    }
    let publisher = Publisher::lazy(config.amqp_url.reveal()).map_err(|error| error.one_line())?;
    let own = engine_queue(&installation, &engine_id);
    let on_missing = {
        let db = db.clone();
        let own = own.clone();
        OnMissing::new(move |queue: String| {
            let (db, has_epoch) = (db.clone(), queue != own);
            async move { if has_epoch { db.bump_epoch(&queue).await.map(|_| ()) } else { Ok(()) } }
        })
    };
    let options = ConsumerOptions {
        queues: queues.iter().cloned().chain([own]).collect(),
        publisher: publisher.clone(),
        at_start: AtStart::MayPoll,
        on_missing,
    };
    let consumer = Consumer::connect(config.amqp_url.reveal(), options).await.map_err(|error| error.one_line())?;
    let settings = Settings {
        queues,
        slots: config.slots,
        parked: config.parked,
        event_days: config.event_days,
        lease_ttl: config.lease_ttl.0,
        grace: run.grace.0,
        credentials: Credentials::new(&installation, std::env::vars()),
        installation,
        repositories: RepositorySettings {
            directory: repository::directory(&image::cache(config)),
            protocols: config.protocols().map(str::to_owned).collect(),
            credentials: config.git_credentials.clone(),
        },
    };
    let (sender, orphans) = mpsc::channel(64);
    let keys = config.keys().map_err(|error| error.to_string())?;
    let store = PackStore::open(db.clone(), &config.store, keys).map_err(|error| format!("HOLDFAST_STORE: {error}"))?;
    let metrics = Metrics::new(config.slots);
    let worker = Arc::new(Worker::new(db, sandbox, store, publisher, metrics, settings, engine_id, sender));
    let liveness = heartbeat::register(&worker).await.map_err(text)?;
    Ok((worker, Arc::new(consumer), orphans, liveness))
}

async fn stop_on_signal(worker: Arc<Worker>) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        warn!("signals cannot be heard");
        return;
    };
    let mut heard = 0;
    loop {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        heard += 1;
        match heard {
            1 => {
                info!(grace = ?worker.settings.grace, "stopping: no more turns are taken; once more to hand running turns over at once");
                worker.draining.cancel();
            }
            2 => worker.hand_over.cancel(),
            _ => std::process::exit(130),
        }
    }
}

/// Leaves nothing behind: leases ended by their owner, parked computers of the last worker destroyed.
async fn stop(worker: &Arc<Worker>, consumer: &Consumer) {
    consumer.close().await;
    if !worker.parked(Duration::from_secs(15)).await {
        warn!("a computer is still being parked; the sweepers of its engine retire it");
    }
    let (identity, liveness) = (worker.identity(), worker.liveness());
    let incarnation = liveness.incarnation.as_deref();
    for outcome in [
        worker.db.set_worker_state(identity.id, WorkerState::Stopped).await,
        worker.db.retire_parked_of_last_worker(identity.id, &worker.engine_id, incarnation).await.map(|_| ()),
    ] {
        if let Err(error) = outcome {
            warn!(%error, "the database was not told of the stop; the leases run out by themselves");
        }
    }
    sweep::destroy_retired(worker).await;
    worker.stopped.cancel();
    if !worker.settle(Duration::from_secs(10)).await {
        warn!("some tasks did not end in time");
    }
    worker.publisher.close().await;
    info!("stopped");
}
