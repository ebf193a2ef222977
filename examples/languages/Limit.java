import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Usage: java Limit.java KEY... Exit code 0: all allowed; 1: one denied. PGLIMIT_URL names the server. */
public class Limit {
    static final HttpClient HTTP = HttpClient.newHttpClient(); // keeps connections open
    static final Pattern RETRY = Pattern.compile("\"retry_after_s\":([^,]*),");

    /** Returns the answer's JSON. Read it with your JSON library; policy and key need no escapes here. */
    static String allow(String policy, String key) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("PGLIMIT_URL") + "/v1/allow"))
            .timeout(Duration.ofSeconds(2))
            .header("Content-Type", "application/json")
            .header("Authorization", "Bearer " + System.getenv().getOrDefault("PGLIMIT_TOKEN", ""))
            .header("Idempotency-Key", UUID.randomUUID().toString())
            .POST(HttpRequest.BodyPublishers.ofString("{\"policy\":\"" + policy + "\",\"key\":\"" + key + "\"}"))
            .build();
        HttpResponse<String> answer;
        try {
            answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        } catch (IOException e) { // it may have been counted: the same Idempotency-Key counts it once
            answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        }
        if (answer.statusCode() >= 500) {
            answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        }
        if (answer.statusCode() != 200) {
            throw new IllegalStateException(answer.body());
        }
        return answer.body();
    }

    public static void main(String[] args) throws Exception {
        boolean all = true;
        for (String key : args) {
            String result = allow("login", key);
            boolean allowed = result.contains("\"allowed\":true");
            Matcher retry = RETRY.matcher(result);
            System.out.println(allowed ? "allowed" : "denied, again in " + (retry.find() ? retry.group(1) : "?") + " s");
            all &= allowed;
        }
        System.exit(all ? 0 : 1);
    }
}
