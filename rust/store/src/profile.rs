//! The profiles that Amazon's tools share: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Owns: the places of the files, the choice of a profile, the settings read from it (keys, region, endpoint), and
//! their precedence against other options.
//! Does not own: the other options (`env_vars`), and sources of credentials other than keys.
//!
//! The files are read when a store is opened; keys that change later are seen by the next one.

use super::env_vars::{EnvVars, StoreKey, Topic, topics};
use configparser::ini::{Ini, IniDefault};
use fastchangelog_format::error::{Error, Result};
use object_store::aws::AmazonS3ConfigKey as Key;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Settings that name a source of credentials other than keys; none of them is supported.
const OTHER_SOURCES: &[&str] = &[
    "role_arn",
    "web_identity_token_file",
    "credential_process",
    "sso_session",
    "sso_start_url",
    "sso_account_id",
    "login_session",
];

/// True for the option that names a profile.
pub(super) fn is_option(name: &str) -> bool {
    ["aws_profile", "profile"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The profile that storage options name, and the other options.
pub(super) fn split(storage_options: &BTreeMap<String, String>) -> (Option<String>, BTreeMap<String, String>) {
    let (named, others): (BTreeMap<_, _>, _) =
        storage_options.clone().into_iter().partition(|(name, _)| is_option(name));
    let named = named.into_values().map(|name| name.trim().to_owned()).find(|name| !name.is_empty());
    (named, others)
}

/// What the profile adds to the options that are `given` and those `beside` them: keys where nothing that goes before
/// gives credentials, and the region and the endpoint where they are missing.
pub(super) fn options(
    named: Option<&str>,
    has_provider: bool,
    given: &[(Key, String)],
    beside: &[(Key, String)],
    environment: &EnvVars,
) -> Result<Vec<(Key, String)>> {
    let all = || given.iter().chain(beside);
    let has = |topic| all().any(|(key, _)| key.topic() == topic);
    let unsigned = all().any(|(key, value)| *key == Key::SkipSignature && value.eq_ignore_ascii_case("true"));
    let of_environment = environment.get("AWS_PROFILE").is_some();
    let goes_before = named.is_none()
        && (topics(given).iter().any(|topic| topic.is_source() || *topic == Topic::Role)
            || (has(Topic::WebIdentity) && !of_environment));
    let wants_keys = !has_provider && !unsigned && !has(Topic::Keys) && !goes_before;
    let profile = match Profile::read(named, environment) {
        // With other credentials, the files are only a convenience.
        Err(_) if !wants_keys && named.is_none() => None,
        read => read?,
    };
    let Some(profile) = profile else { return Ok(Vec::new()) };
    let mut more = Vec::new();
    if wants_keys && let Some(keys) = profile.keys(named.is_some())? {
        more.push((Key::AccessKeyId, keys.key_id));
        more.push((Key::SecretAccessKey, keys.secret));
        more.extend(keys.token.map(|token| (Key::Token, token)));
    }
    more.extend(profile.region.filter(|_| !has(Topic::Region)).map(|region| (Key::Region, region)));
    // An endpoint of the default profile is only for the keys of that profile.
    let is_meant = named.is_some() || of_environment || more.iter().any(|(key, _)| key.topic() == Topic::Keys);
    let endpoint = profile.endpoint.filter(|_| is_meant && !has(Topic::Endpoint));
    more.extend(endpoint.map(|endpoint| (Key::Endpoint, endpoint)));
    Ok(more)
}

/// Keys of a profile.
#[derive(Clone)]
struct Keys {
    key_id: String,
    secret: String,
    token: Option<String>,
}

/// The settings of a profile.
struct Profile {
    name: String,
    keys: Option<Keys>,
    region: Option<String>,
    endpoint: Option<String>,
    /// A source that it names instead of keys.
    other_source: Option<&'static str>,
}

impl Profile {
    /// The profile `named`, else that of `AWS_PROFILE`, else the default one. Only the default one may be missing.
    fn read(named: Option<&str>, environment: &EnvVars) -> Result<Option<Self>> {
        let wanted = named.or(environment.get("AWS_PROFILE"));
        let name = wanted.unwrap_or("default");
        let file = |variable: &str, usual: &str| match (environment.get(variable), environment.get("HOME")) {
            (Some(path), _) => Some(PathBuf::from(path)),
            (None, home) => home.map(|home| Path::new(home).join(".aws").join(usual)),
        };
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = file("AWS_CONFIG_FILE", "config");
        let mut found = section(credentials.as_deref(), |title| title == name)?;
        // In the configuration, all but the default profile are called `profile <name>`.
        let ours = |title: &str| {
            title
                .strip_prefix("profile")
                .filter(|rest| rest.starts_with([' ', '\t']))
                .is_some_and(|rest| unquoted(rest) == name)
                || (title == "default" && name == "default")
        };
        if let Some(more) = section(config.as_deref(), ours)? {
            let mut merged = found.unwrap_or_default();
            if merged.contains_key("aws_access_key_id") {
                // Keys of the two files are never mixed.
                merged.extend(more.into_iter().filter(|(key, _)| !is_key(key)));
            } else {
                merged.extend(more);
            }
            found = Some(merged);
        }
        match (found, wanted) {
            (Some(settings), _) => Self::from_settings(name, &settings).map(Some),
            (None, None) => Ok(None),
            (None, Some(_)) => {
                let shown =
                    |path: Option<PathBuf>| path.map_or_else(|| "(no HOME)".to_owned(), |p| p.display().to_string());
                Err(Error::invalid(format!(
                    "the AWS profile `{name}` is neither in {} nor in {}",
                    shown(credentials),
                    shown(config)
                ))
                .with_remedy("correct `aws_profile` (AWS_PROFILE) or add it"))
            }
        }
    }

    fn from_settings(name: &str, settings: &BTreeMap<String, String>) -> Result<Self> {
        let get = |key: &str| settings.get(key).filter(|value| !value.is_empty()).cloned();
        let other_source = OTHER_SOURCES.iter().copied().find(|key| get(key).is_some());
        let keys = match (get("aws_access_key_id"), get("aws_secret_access_key")) {
            // With a role, keys are only what it is assumed with.
            _ if other_source == Some("role_arn") => None,
            (Some(key_id), Some(secret)) => Some(Keys { key_id, secret, token: get("aws_session_token") }),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(format!(
                    "the AWS profile `{name}` has only one of aws_access_key_id and aws_secret_access_key"
                ))
                .with_remedy("set both"));
            }
        };
        Ok(Self { name: name.to_owned(), keys, region: get("region"), endpoint: get("endpoint_url"), other_source })
    }

    /// Its keys. Absent keys are an error if the profile names another source or was requested by name.
    fn keys(&self, by_name: bool) -> Result<Option<Keys>> {
        let name = &self.name;
        let remedy = "give keys in the storage options or the environment (`aws configure export-credentials` prints \
                      them), or a `credential_provider`";
        match (&self.keys, self.other_source) {
            (Some(keys), _) => Ok(Some(keys.clone())),
            (None, Some(source)) => Err(Error::invalid(format!(
                "the AWS profile `{name}` takes its credentials from `{source}`, which is not supported"
            ))
            .with_remedy(remedy)),
            (None, None) if by_name => {
                Err(Error::invalid(format!("the AWS profile `{name}` has no aws_access_key_id")).with_remedy(remedy))
            }
            (None, None) => Ok(None),
        }
    }
}

fn is_key(name: &str) -> bool {
    matches!(name, "aws_access_key_id" | "aws_secret_access_key" | "aws_session_token")
}

fn unquoted(title: &str) -> &str {
    let title = title.trim();
    title.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(title)
}

/// The settings of the sections with the title that is `wanted`; a file that does not exist has none.
fn section(path: Option<&Path>, wanted: impl Fn(&str) -> bool) -> Result<Option<BTreeMap<String, String>>> {
    let Some(path) = path else { return Ok(None) };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io_at("cannot read", path, &error)),
    };
    // Indented lines belong to the setting above them; values may hold `:`, `#` and `;`.
    let mut grammar = IniDefault::default();
    grammar.default_section = String::new();
    grammar.delimiters = vec!['='];
    grammar.case_sensitive = true;
    grammar.multiline = true;
    grammar.enable_inline_comments = false;
    let sections = Ini::new_from_defaults(grammar).read(text).map_err(|line| {
        Error::invalid(format!("{} is not in the format of Amazon's tools: {line}", path.display()))
            .with_remedy("correct it")
    })?;
    let mut found: Option<BTreeMap<String, String>> = None;
    for (title, settings) in sections {
        if wanted(&title) {
            let settings = settings.into_iter().filter_map(|(key, value)| Some((key.to_ascii_lowercase(), value?)));
            found.get_or_insert_default().extend(settings);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        credentials: &str,
        config: &str,
        named: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<Option<Profile>> {
        let folder = tempfile::tempdir().unwrap();
        let aws = folder.path().join(".aws");
        std::fs::create_dir(&aws).unwrap();
        std::fs::write(aws.join("credentials"), credentials).unwrap();
        std::fs::write(aws.join("config"), config).unwrap();
        let home = [("HOME", folder.path().to_str().unwrap())];
        let environment = home.iter().chain(variables).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Profile::read(named, &environment)
    }

    const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=s#;:=/+\n\n\
        [team]\nAWS_ACCESS_KEY_ID=B\naws_secret_access_key = t\naws_session_token = a==\n";
    const CONFIG: &str = "[default]\nregion = eu-west-1\ns3 =\n  region = nested\n  aws_access_key_id = nested\n\n\
        [profile team]\nregion = eu-west-3\naws_access_key_id = C\nendpoint_url = http://minio:9000\n\
        [profile \"a b\"]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n[profile bare]\noutput = json\n\
        [team2]\nregion = x\n";

    #[test]
    fn both_files_make_a_profile() {
        let default = read(CREDENTIALS, CONFIG, None, &[]).unwrap().unwrap();
        let keys = default.keys.unwrap();
        assert_eq!((keys.key_id.as_str(), keys.secret.as_str(), keys.token), ("A", "s#;:=/+", None));
        assert_eq!(default.region.as_deref(), Some("eu-west-1"));
        for team in
            [read(CREDENTIALS, CONFIG, Some("team"), &[]), read(CREDENTIALS, CONFIG, None, &[("AWS_PROFILE", "team")])]
        {
            let team = team.unwrap().unwrap();
            let keys = team.keys.unwrap();
            assert_eq!((keys.key_id.as_str(), keys.token.as_deref()), ("B", Some("a==")), "the credentials file wins");
            assert_eq!(team.region.as_deref(), Some("eu-west-3"));
            assert_eq!(team.endpoint.as_deref(), Some("http://minio:9000"));
        }
    }

    #[test]
    fn only_the_default_profile_may_be_missing() {
        assert!(read("", "", None, &[]).unwrap().is_none());
        assert!(Profile::read(None, &std::iter::empty().collect()).unwrap().is_none(), "no HOME");
        for named in ["absent", "team2"] {
            let error = read(CREDENTIALS, CONFIG, Some(named), &[]).err().unwrap();
            assert!(error.message().contains(named) && error.message().contains("credentials"), "{error}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let role = read(CREDENTIALS, CONFIG, Some("a b"), &[]).unwrap().unwrap();
        let error = role.keys(false).err().unwrap();
        assert!(error.message().contains("`a b`") && error.message().contains("`role_arn`"), "{error}");
        let mut both = CREDENTIALS.to_owned();
        both.push_str("role_arn = r\n");
        let both = read(&both, CONFIG, Some("team"), &[]).unwrap().unwrap();
        assert!(both.keys(false).is_err(), "the role is what was wanted");
        let bare = read(CREDENTIALS, CONFIG, Some("bare"), &[]).unwrap().unwrap();
        assert!(bare.keys(false).unwrap().is_none() && bare.keys(true).is_err());
        let half = read("[default]\naws_access_key_id = A", "", None, &[]).err().unwrap();
        assert!(half.message().contains("set both"), "{half}");
        let broken = read("[default\nsesame = open", "", None, &[]).err().unwrap();
        assert!(broken.message().contains("line 1") && !broken.message().contains("sesame"), "{broken}");
    }

    #[test]
    fn a_profile_fills_gaps_and_takes_nothing_over() {
        let folder = tempfile::tempdir().unwrap();
        let aws = folder.path().join(".aws");
        std::fs::create_dir(&aws).unwrap();
        std::fs::write(aws.join("credentials"), CREDENTIALS).unwrap();
        std::fs::write(aws.join("config"), CONFIG).unwrap();
        let home = folder.path().to_str().unwrap();
        let added = |named: Option<&str>, provider, given: &[Key], beside: &[Key], profile: &str| {
            let own = |keys: &[Key]| keys.iter().map(|key| (*key, "true".to_owned())).collect::<Vec<_>>();
            let variables = [("HOME", home), ("AWS_PROFILE", profile)];
            let environment = variables.map(|(k, v)| (k.to_owned(), v.to_owned())).into_iter().collect();
            options(named, provider, &own(given), &own(beside), &environment)
                .map(|more| more.into_iter().map(|(_, value)| value).collect::<Vec<_>>())
        };
        let team = ["B", "t", "a==", "eu-west-3", "http://minio:9000"];
        assert_eq!(added(None, false, &[], &[], "").unwrap(), ["A", "s#;:=/+", "eu-west-1"]);
        assert_eq!(added(None, false, &[], &[], "team").unwrap(), team);
        assert_eq!(added(Some("team"), false, &[], &[], "bare").unwrap(), team);
        assert_eq!(added(None, false, &[Key::AccessKeyId, Key::Region], &[], "").unwrap(), [""; 0]);
        assert_eq!(added(None, true, &[], &[], "").unwrap(), ["eu-west-1"]);
        assert_eq!(added(None, false, &[Key::SkipSignature], &[], "").unwrap(), ["eu-west-1"]);
        assert_eq!(added(None, false, &[], &[Key::WebIdentityTokenFile], "").unwrap(), ["eu-west-1"]);
        assert_eq!(added(None, false, &[], &[Key::WebIdentityTokenFile], "team").unwrap(), team);
        assert_eq!(added(None, false, &[Key::AccessKeyId], &[], "absent").unwrap(), [""; 0]);
        assert!(added(None, false, &[], &[], "absent").is_err());
        assert!(added(Some("absent"), false, &[Key::AccessKeyId], &[], "").is_err());
    }
}
