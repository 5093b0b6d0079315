//! The engine's image store, as far as making sandbox images needs it.
//!
//! A name is given only when the image under it is whole: an import or a build that is cut off leaves no name behind.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bollard::query_parameters::{
    BuildImageOptionsBuilder, CreateImageOptionsBuilder, RemoveImageOptionsBuilder, TagImageOptionsBuilder,
};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::engine::{Engine, Fault, QUICK, call};
use crate::sandbox::SandboxError;

/// An uncompressed tar on its way to the engine. An error in it aborts what the engine does with it.
pub type TarStream = BoxStream<'static, io::Result<Bytes>>;

/// An image in the store.
#[derive(Clone, PartialEq, Debug)]
pub struct Image {
    pub id: String,
    pub size_bytes: u64,
    pub labels: HashMap<String, String>,
    /// Its names.
    pub tags: Vec<String>,
}

/// How a Dockerfile is run.
#[derive(Clone, Copy, Debug)]
pub struct Recipe<'a> {
    /// The name the image gets.
    pub name: &'a str,
    /// The network of its RUN steps.
    pub network: &'a str,
    /// Whether every step runs again, although the engine has its result.
    pub fresh: bool,
}

impl Engine {
    /// The image of a name, or of an id.
    pub async fn image(&self, name: &str) -> Result<Option<Image>, SandboxError> {
        match call(QUICK, self.client.inspect_image(name)).await {
            Ok(found) => Ok(Some(Image {
                id: found.id.unwrap_or_default(),
                size_bytes: found.size.unwrap_or(0).try_into().unwrap_or(0),
                labels: found.config.and_then(|config| config.labels).unwrap_or_default(),
                tags: found.repo_tags.unwrap_or_default(),
            })),
            Err(fault) if fault.code() == Some(404) => Ok(None),
            Err(fault) => Err(fault.during("image")),
        }
    }

    /// The id behind a name now; the name may move while a computer is made, the id does not.
    pub(super) async fn required_image(&self, name: &str) -> Result<String, SandboxError> {
        let found = self.image(name).await?;
        found.map(|image| image.id).ok_or_else(|| {
            SandboxError::Unsatisfiable(format!(
                "image {name} is not on the Docker engine at {}: make it with `holdfast image build`",
                self.address()
            ))
        })
    }

    /// Makes an image of one layer from a tar of a root directory, and returns its id.
    pub async fn import_image(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        root: TarStream,
        deadline: Duration,
    ) -> Result<String, SandboxError> {
        let (repo, tag) = split(name);
        let labels = labels.iter().map(|(key, value)| format!("LABEL {key}={value}")).collect();
        let options = CreateImageOptionsBuilder::default().from_src("-").repo(repo).tag(tag).changes(labels).build();
        let body = bollard::body_try_stream(root);
        call(deadline, async {
            let mut answers = std::pin::pin!(self.client.create_image(Some(options), Some(body), None));
            let mut last = None;
            while let Some(answer) = answers.next().await {
                last = answer?.status.or(last);
            }
            Ok(last.unwrap_or_default())
        })
        .await
        .map_err(|fault| fault.during("import"))
    }

    /// Runs a Dockerfile; the context is all that is sent. Returns the id.
    pub async fn build_image(
        &self,
        recipe: Recipe<'_>,
        context: TarStream,
        deadline: Duration,
        line: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<String, SandboxError> {
        let options = BuildImageOptionsBuilder::default()
            .t(recipe.name)
            .networkmode(recipe.network)
            .nocache(recipe.fresh)
            .rm(true)
            .forcerm(true)
            .build();
        let id = call(deadline, async {
            let mut id = None;
            let mut answers =
                std::pin::pin!(self.client.build_image(options, None, Some(bollard::body_try_stream(context))));
            while let Some(answer) = answers.next().await {
                let answer = answer?;
                answer.stream.iter().flat_map(|text| text.lines()).filter(|text| !text.is_empty()).for_each(line);
                id = answer.aux.and_then(|aux| aux.id).or(id);
            }
            Ok(id)
        })
        .await
        .map_err(|fault| fault.during("build"))?;
        id.ok_or_else(|| Fault::Answer { code: 500, message: "the build named no image".to_owned() }.during("build"))
    }

    /// Fetches an image from its registry.
    pub async fn pull_image(&self, name: &str, deadline: Duration) -> Result<(), SandboxError> {
        let (repo, tag) = split(name);
        let options = CreateImageOptionsBuilder::default().from_image(repo).tag(tag).build();
        call(deadline, async {
            let mut answers = std::pin::pin!(self.client.create_image(Some(options), None, None));
            while let Some(answer) = answers.next().await {
                answer?;
            }
            Ok(())
        })
        .await
        .map_err(|fault| fault.during("pull"))
    }

    /// Gives an image one more name.
    pub async fn tag_image(&self, id: &str, name: &str) -> Result<(), SandboxError> {
        let (repo, tag) = split(name);
        let options = TagImageOptionsBuilder::default().repo(repo).tag(tag).build();
        call(QUICK, self.client.tag_image(id, Some(options))).await.map_err(|fault| fault.during("tag"))
    }

    /// Removes an image that has no name left, unless something uses it; what cannot be removed stays.
    pub async fn forget_unnamed_image(&self, id: &str) {
        if !matches!(self.image(id).await, Ok(Some(image)) if image.tags.is_empty()) {
            return;
        }
        let options = RemoveImageOptionsBuilder::default().force(false).build();
        if let Err(fault) = call(QUICK, self.client.remove_image(id, Some(options), None)).await {
            tracing::debug!(image = id, error = %fault, "the image stays");
        }
    }
}

/// Repository and tag of a name.
fn split(name: &str) -> (&str, &str) {
    match name.rsplit_once(':') {
        Some((repo, tag)) if !tag.contains('/') => (repo, tag),
        _ => (name, "latest"),
    }
}
