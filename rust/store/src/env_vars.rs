//! Environment variables as storage options, and the precedence between the two.
//!
//! Owns: the variables that stores read, the contradictions between options, and the list of secret values.
//! Does not own: the effect of an option (`object_store`), the files that Amazon's tools share (`profile`).
//!
//! Rule: a source of credentials, an endpoint or a region that is named explicitly is used alone, never mixed with
//! others.

use fastchangelog_format::error::{Error, Result};
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use std::collections::BTreeMap;
use std::str::FromStr;

/// The subject of an option, for contradictions between options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    /// Something that contradicts nothing.
    Nothing,
    /// Where the store is.
    Endpoint,
    /// The store's region.
    Region,
    /// Selects the credentials, or none, without naming a source.
    Switch,
    /// Keys, tokens and signatures that requests carry or are signed with.
    Keys,
    /// A function or a profile, named by the caller.
    Named,
    /// AWS: a token in a file, good for a role.
    WebIdentity,
    /// AWS: the role that is assumed with it.
    Role,
    /// AWS: a service beside the container.
    Container,
    /// Azure: the client's identity; belongs to a secret, a token in a file or a machine.
    Application,
    /// Azure: the application's secret.
    ClientSecret,
    /// Azure: a token in a file.
    Federated,
    /// Azure: a service of the machine.
    Machine,
    /// Azure: the login of its command line.
    CommandLine,
    /// Azure: Fabric's token service.
    Fabric,
}

impl Topic {
    fn is_about_credentials(self) -> bool {
        !matches!(self, Self::Nothing | Self::Endpoint | Self::Region)
    }

    /// True if this subject is a source of credentials.
    pub(super) fn is_source(self) -> bool {
        self.is_about_credentials() && !matches!(self, Self::Switch | Self::Role | Self::Application | Self::Machine)
    }

    /// True if an option about this takes the place of options about `other` with lower precedence.
    fn replaces(self, other: Self) -> bool {
        let kept: &[Self] = match self {
            Self::Nothing | Self::Switch => return false,
            Self::Endpoint | Self::Region => return self == other,
            Self::Keys | Self::Named | Self::CommandLine => &[],
            Self::Container | Self::Fabric => &[self],
            Self::WebIdentity | Self::Role => &[Self::WebIdentity, Self::Role],
            Self::Application => &[Self::Application, Self::ClientSecret, Self::Federated, Self::Machine],
            Self::ClientSecret | Self::Federated | Self::Machine => &[self, Self::Application],
        };
        other.is_about_credentials() && !kept.contains(&other)
    }
}

/// The options of one kind of store.
pub(super) trait StoreKey: FromStr + PartialEq + AsRef<str> {
    /// How the names of its variables begin.
    const VARIABLES: &'static str;
    /// Variables of other names, with the option that each is.
    const OTHERS: &'static [(&'static str, &'static str)] = &[];

    fn topic(&self) -> Topic;

    /// True for the endpoint that takes precedence over another given one.
    fn is_first_endpoint(&self) -> bool {
        false
    }

    /// True for the option whose empty value has a meaning: none shall be used.
    fn may_be_empty(&self) -> bool {
        false
    }

    /// The option `name`, in either case.
    fn named(name: &str) -> Option<Self> {
        name.to_ascii_lowercase().parse().ok()
    }
}

impl StoreKey for AmazonS3ConfigKey {
    const VARIABLES: &'static str = "AWS_";

    fn topic(&self) -> Topic {
        match self {
            Self::AccessKeyId | Self::SecretAccessKey | Self::Token => Topic::Keys,
            Self::WebIdentityTokenFile => Topic::WebIdentity,
            Self::RoleArn | Self::RoleSessionName => Topic::Role,
            Self::ContainerCredentialsRelativeUri
            | Self::ContainerCredentialsFullUri
            | Self::ContainerAuthorizationTokenFile => Topic::Container,
            Self::SkipSignature => Topic::Switch,
            Self::Endpoint | Self::S3Endpoint => Topic::Endpoint,
            Self::Region | Self::DefaultRegion => Topic::Region,
            _ => Topic::Nothing,
        }
    }

    fn is_first_endpoint(&self) -> bool {
        *self == Self::S3Endpoint
    }

    fn may_be_empty(&self) -> bool {
        *self == Self::Checksum
    }
}

impl StoreKey for AzureConfigKey {
    const VARIABLES: &'static str = "AZURE_";
    const OTHERS: &'static [(&'static str, &'static str)] = &[("IDENTITY_ENDPOINT", "azure_identity_endpoint")];

    fn topic(&self) -> Topic {
        match self {
            Self::AccessKey | Self::SasKey | Self::Token => Topic::Keys,
            Self::ClientId | Self::AuthorityId | Self::AuthorityHost => Topic::Application,
            Self::ClientSecret => Topic::ClientSecret,
            Self::FederatedTokenFile => Topic::Federated,
            Self::MsiEndpoint | Self::ObjectId | Self::MsiResourceId => Topic::Machine,
            Self::UseAzureCli => Topic::CommandLine,
            Self::FabricTokenServiceUrl
            | Self::FabricWorkloadHost
            | Self::FabricSessionToken
            | Self::FabricClusterIdentifier => Topic::Fabric,
            Self::SkipSignature | Self::CredentialType => Topic::Switch,
            Self::Endpoint => Topic::Endpoint,
            _ => Topic::Nothing,
        }
    }
}

impl StoreKey for GoogleConfigKey {
    const VARIABLES: &'static str = "GOOGLE_";
    const OTHERS: &'static [(&'static str, &'static str)] = &[("SERVICE_ACCOUNT", "google_service_account")];

    fn topic(&self) -> Topic {
        match self {
            Self::ServiceAccount | Self::ServiceAccountKey | Self::ApplicationCredentials | Self::BearerToken => {
                Topic::Keys
            }
            Self::SkipSignature => Topic::Switch,
            Self::BaseUrl => Topic::Endpoint,
            _ => Topic::Nothing,
        }
    }

    fn named(name: &str) -> Option<Self> {
        // As providers of credentials call it for each store.
        if name.eq_ignore_ascii_case("token") {
            Some(Self::BearerToken)
        } else {
            name.to_ascii_lowercase().parse().ok()
        }
    }
}

/// The value of the option or variable `name`, without surrounding blanks, which secrets from files often have; none if
/// nothing is left. A value that no store can be sent is an error.
pub(super) fn tidied<K: StoreKey>(key: &K, name: &str, value: &str) -> Result<Option<String>> {
    let value = value.trim();
    let refused = |what: &str, remedy: &str| {
        Err(Error::invalid(format!("the storage option `{name}` {what}")).with_remedy(remedy))
    };
    let lowered = name.to_ascii_lowercase();
    if value.is_empty() && !key.may_be_empty() {
        // An empty token or endpoint counts as absent; half a key is a mistake.
        let is_half = key.topic() == Topic::Keys && !lowered.contains("token");
        return if is_half {
            refused("is empty", "give its value, or leave it out with the rest of the key")
        } else {
            Ok(None)
        };
    }
    // Certificates and the keys of service accounts are documents of several lines.
    let is_document = lowered.contains("certificate") || lowered.contains("service_account");
    if !is_document && value.chars().any(char::is_control) {
        return refused(
            "has a control character, such as a newline, in its value",
            "correct the value; it is not shown here",
        );
    }
    let is_sent = matches!(key.topic(), Topic::Keys | Topic::Region) && !is_document;
    if is_sent && !is_header_text(value) {
        return refused("has a character beyond ASCII in its value", "correct the value; it is not shown here");
    }
    Ok(Some(value.to_owned()))
}

/// True for the value of a switch that is on.
pub(super) fn is_on(value: &str) -> bool {
    ["1", "true", "on", "yes", "y"].iter().any(|word| value.trim().eq_ignore_ascii_case(word))
}

/// True for the value of a switch that is off.
pub(super) fn is_off(value: &str) -> bool {
    ["0", "false", "off", "no", "n"].iter().any(|word| value.trim().eq_ignore_ascii_case(word))
}

/// True for a text that a header can hold verbatim.
pub(super) fn is_header_text(text: &str) -> bool {
    text.bytes().all(|b| (b' '..=b'~').contains(&b))
}

/// The subject of an option with this value; a switch that is off has none.
fn topic_of<K: StoreKey>(key: &K, value: &str) -> Topic {
    match key.topic() {
        Topic::CommandLine if is_off(value) => Topic::Nothing,
        topic => topic,
    }
}

/// The subjects of options.
pub(super) fn topics<'a, K: StoreKey + 'a>(options: impl IntoIterator<Item = &'a (K, String)>) -> Vec<Topic> {
    options.into_iter().map(|(key, value)| topic_of(key, value)).collect()
}

/// The environment of a process.
pub(super) struct EnvVars(BTreeMap<String, String>);

impl EnvVars {
    /// The environment of this process, without values that are not UTF-8.
    pub(super) fn of_process() -> Self {
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect()
    }

    /// The variable `name`, unless it is empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The options set here that don't contradict the `given` ones. Empty variables set nothing.
    pub(super) fn options<K: StoreKey>(&self, given: &[Topic]) -> Result<Vec<(K, String)>> {
        let others = K::OTHERS.iter().map(|(variable, name)| (*variable, *name));
        let named = self.0.keys().filter(|variable| variable.starts_with(K::VARIABLES));
        let all = others.chain(named.map(|variable| (variable.as_str(), variable.as_str())));
        let mut options = Vec::new();
        for (variable, option) in all {
            let (Some(key), Some(value)) = (K::named(option), self.get(variable)) else { continue };
            if given.iter().any(|topic| topic.replaces(key.topic())) {
                continue;
            }
            options.extend(tidied(&key, variable, value)?.map(|value| (key, value)));
        }
        Ok(options)
    }

    /// Values that must never be shown.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        let ours = |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix));
        self.0.iter().filter(move |(name, _)| ours(name) && is_secret(name)).map(|(_, value)| value.trim())
    }
}

impl FromIterator<(String, String)> for EnvVars {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

/// True for names of options and variables whose values must never be shown.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["key", "secret", "token", "sas", "password", "credential", "bearer", "service_account"]
        .iter()
        .any(|part| name.contains(part))
}

/// Merges storage options from two places: all of `over`, and the options of `under` that don't contradict it.
pub fn overlaid(under: &BTreeMap<String, String>, over: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    fn gives_way<K: StoreKey>(name: &str, over: &BTreeMap<String, String>) -> bool {
        let Some(key) = K::named(name) else { return false };
        over.iter().any(|(other, value)| {
            K::named(other).is_some_and(|other| other == key || topic_of(&other, value).replaces(key.topic()))
        })
    }
    let mut merged = under.clone();
    merged.retain(|name, _| {
        !gives_way::<AmazonS3ConfigKey>(name, over)
            && !gives_way::<AzureConfigKey>(name, over)
            && !gives_way::<GoogleConfigKey>(name, over)
    });
    merged.extend(over.iter().map(|(name, value)| (name.clone(), value.clone())));
    merged
}

/// The credentials among storage options, as a caller may hand in others of later, and the other options.
///
/// Sources of credentials, such as a role, a profile or the key of a service account, do not count as credentials here:
/// the store fetches credentials from them.
pub fn split_credentials(
    storage_options: &BTreeMap<String, String>,
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    type S3 = AmazonS3ConfigKey;
    type Azure = AzureConfigKey;
    let is_credential = |name: &str| {
        matches!(S3::named(name), Some(S3::AccessKeyId | S3::SecretAccessKey | S3::Token))
            || matches!(Azure::named(name), Some(Azure::AccessKey | Azure::SasKey | Azure::Token))
            || matches!(GoogleConfigKey::named(name), Some(GoogleConfigKey::BearerToken))
    };
    storage_options.clone().into_iter().partition(|(name, _)| is_credential(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    /// The variables that are still options beside the `given` ones.
    fn left<K: StoreKey>(variables: &[&str], given: &[&str]) -> usize {
        let environment: EnvVars = variables.iter().map(|v| ((*v).to_owned(), "x".to_owned())).collect();
        let given: Vec<Topic> = given.iter().map(|name| K::named(name).unwrap().topic()).collect();
        environment.options::<K>(&given).unwrap().len()
    }

    #[test]
    fn blanks_are_removed_and_empty_variables_set_nothing() {
        let of = |pairs: &[(&str, &str)]| -> EnvVars { map(pairs).into_iter().collect() };
        let options = |pairs: &[(&str, &str)]| of(pairs).options::<AmazonS3ConfigKey>(&[]);
        let read =
            options(&[("AWS_ACCESS_KEY_ID", " AKIA\r\n"), ("AWS_ENDPOINT_URL", ""), ("AWS_REGION", " \n")]).unwrap();
        assert_eq!(read, [(AmazonS3ConfigKey::AccessKeyId, "AKIA".to_owned())]);
        for (variable, value) in [("AWS_SECRET_ACCESS_KEY", "sesame\nopen"), ("AWS_SESSION_TOKEN", "sésame")] {
            let error = options(&[(variable, value)]).unwrap_err();
            assert!(error.message().contains(variable) && !error.message().contains("same"), "{error}");
        }
        let tidy = |name, value| tidied(&AmazonS3ConfigKey::named(name).unwrap(), name, value);
        assert_eq!(tidy("session_token", "").unwrap(), None);
        assert_eq!(tidy("checksum_algorithm", " ").unwrap().as_deref(), Some(""), "no header");
        assert!(tidy("secret_access_key", " ").unwrap_err().message().contains("`secret_access_key` is empty"));
        assert_eq!(tidy("proxy_ca_certificate", "-\n-\n").unwrap().unwrap(), "-\n-");
    }

    #[test]
    fn the_environment_never_mixes_into_what_was_given() {
        type S3 = AmazonS3ConfigKey;
        let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
        assert_eq!(left::<S3>(&keys, &[]), 3);
        assert_eq!(left::<S3>(&keys, &["region", "endpoint", "skip_signature"]), 3);
        assert_eq!(left::<S3>(&keys, &["access_key_id", "secret_access_key"]), 0);
        assert_eq!(left::<S3>(&keys, &["web_identity_token_file"]), 0);
        let kubernetes = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_SKIP_SIGNATURE"];
        assert_eq!(left::<S3>(&kubernetes, &["role_arn"]), 2, "another role with the pod's token");
        assert_eq!(left::<S3>(&kubernetes, &["access_key_id"]), 0);
        assert_eq!(left::<S3>(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION"], &["aws_endpoint"]), 1);
        assert_eq!(left::<S3>(&["AWS_REGION", "AWS_PROFILE"], &["default_region"]), 0);

        type Azure = AzureConfigKey;
        assert_eq!(left::<Azure>(&["AZURE_STORAGE_TOKEN", "AZURE_STORAGE_ACCOUNT_NAME"], &["account_key"]), 1);
        let pod = ["AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "IDENTITY_ENDPOINT"];
        assert_eq!(left::<Azure>(&pod, &["client_id"]), 4);
        assert_eq!(left::<Azure>(&pod, &["client_secret"]), 2);
        assert_eq!(left::<Azure>(&pod, &["sas_token"]), 0);

        type Google = GoogleConfigKey;
        assert_eq!(left::<Google>(&["SERVICE_ACCOUNT", "GOOGLE_BUCKET"], &["service_account_key"]), 1);
    }

    #[test]
    fn a_switch_that_is_off_replaces_nothing() {
        let off = [(AzureConfigKey::UseAzureCli, "false".to_owned())];
        assert_eq!(topics(&off), [Topic::Nothing]);
        assert_eq!(topics(&[(AzureConfigKey::UseAzureCli, "true".to_owned())]), [Topic::CommandLine]);
    }

    #[test]
    fn credentials_are_told_from_what_leads_to_them() {
        let (credentials, others) = split_credentials(&map(&[
            ("aws_access_key_id", "a"),
            ("SECRET_ACCESS_KEY", "a"),
            ("session_token", "a"),
            ("azure_storage_account_key", "a"),
            ("sas_token", "a"),
            ("bearer_token", "a"),
            ("token", "a"),
            ("region", "b"),
            ("endpoint", "b"),
            ("role_arn", "b"),
            ("aws_profile", "b"),
            ("client_secret", "b"),
            ("google_service_account_key", "b"),
            ("skip_signature", "b"),
            ("account_name", "b"),
        ]));
        assert!(credentials.len() == 7 && credentials.values().all(|value| value == "a"), "{:?}", credentials.keys());
        assert!(others.len() == 8 && others.values().all(|value| value == "b"), "{:?}", others.keys());
    }

    #[test]
    fn of_two_places_one_wins_whole() {
        let under = map(&[("aws_access_key_id", "old"), ("aws_session_token", "old"), ("aws_region", "r")]);
        let over = map(&[("access_key_id", "new"), ("secret_access_key", "new")]);
        let merged = map(&[("access_key_id", "new"), ("secret_access_key", "new"), ("aws_region", "r")]);
        assert_eq!(overlaid(&under, &over), merged);
        assert_eq!(overlaid(&under, &BTreeMap::new()), under);
        let sas = map(&[("sas_token", "s")]);
        assert_eq!(overlaid(&map(&[("azure_storage_account_key", "k")]), &sas), sas);
    }
}
